"""The draft model's caches that ended sessions leave on a node of the cloud that drafts, for later ones to begin with.

Beside the target's (`serving.core.kv_accounting`): a draft cache goes when the target's cache of its session goes,
since both take the memory that is counted.
"""

from serving.core.cached_prefixes import CachedPrefixes
from serving.core.session import Session
from serving.messages import Commands, CopyCache, DropCache


class SharedDraftCaches:
    """
    Args:
        block_tokens: a prefix is shared in whole blocks of so many tokens.
    """

    def __init__(self, block_tokens: int) -> None:
        self._prefixes, self._block_tokens = CachedPrefixes(block_tokens), block_tokens

    def keep(self, session: Session) -> bool:
        """An ended session leaves its cache. False if it holds less than a block."""
        name = session.request.session
        self._prefixes.write(name, 0, tuple(session.tokens[: session.draft_cached_len]))
        if self.holds(name):
            return True
        self._prefixes.drop(name)
        return False

    def take(self, session: Session) -> Commands:
        """A session that begins gets a copy of the longest beginning of its prompt that a cache holds."""
        name = session.request.session
        out = self.free(name)
        source, session.draft_cached_len = self._prefixes.longest(session.tokens)
        return [*out, CopyCache(source, name, session.draft_cached_len)] if source else out

    def holds(self, name: str) -> bool:
        """True if an ended session's cache is kept."""
        return self._prefixes.has(name, self._block_tokens)

    def free(self, name: str) -> Commands:
        """The cache of an ended session goes, if it is kept."""
        if not self.holds(name):
            return []
        self._prefixes.drop(name)
        return [DropCache(name, None)]
