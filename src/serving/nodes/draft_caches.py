"""The draft model's caches that ended sessions leave, for later ones whose text begins alike."""

from serving.core.cached_prefixes import CachedPrefixes, shared_len
from serving.core.session import Session
from serving.messages import Commands, CopyCache, DropCache, MoveCache, TokenIds


class DeviceDraftCaches:
    """Those on a user's device: the next session takes one over, cut to what both texts begin with, as in a slot of
    llama.cpp's server (`cache_prompt`). Nothing is copied.

    Args:
        max_sessions: how many ended sessions leave their caches.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self.texts: dict[str, TokenIds] = {}
        """Ended session -> the text in its cache, the longest idle first."""

    def keep(self, session: Session) -> Commands:
        """An ended session leaves its cache; the longest idle one may be freed for it."""
        self.texts[session.request.session] = tuple(session.tokens[: session.draft_cached_len])
        return self.free(next(iter(self.texts))) if len(self.texts) > self._max_sessions else []

    def take(self, session: Session) -> Commands:
        """A session that begins gets the cache that holds most of its prompt, and computes what is behind it."""
        name, prompt = session.request.session, session.tokens[:-1]  # at least one token must be computed
        shared = {idle: shared_len(text, prompt) for idle, text in self.texts.items()}
        best = max(reversed(shared), key=shared.__getitem__, default="")
        if not shared.get(best):
            return self.free(name)
        del self.texts[best]
        session.draft_cached_len = shared[best]
        return [*self.free(name), MoveCache(best, name)] if best != name else []

    def free(self, name: str) -> Commands:
        """The cache of an ended session goes, if it is kept."""
        return [DropCache(name, None)] if self.texts.pop(name, None) is not None else []


class SharedDraftCaches:
    """Those on a node of the cloud that drafts: a session that begins gets a copy, so that several can.

    A draft cache goes when the target's cache of its session goes (`serving.core.kv_accounting`), since both take the
    memory that is counted.

    Args:
        block_tokens: a prefix is shared in whole blocks of so many tokens.
    """

    def __init__(self, block_tokens: int) -> None:
        self._prefixes, self._block_tokens = CachedPrefixes(block_tokens), block_tokens

    def keep(self, session: Session) -> bool:
        """An ended session leaves its cache. False if it holds less than a block."""
        name = session.request.session
        self._prefixes.write(name, 0, tuple(session.tokens[: session.draft_cached_len]))
        if self._holds(name):
            return True
        self._prefixes.drop(name)
        return False

    def take(self, session: Session) -> Commands:
        """A session that begins gets a copy of the longest beginning of its prompt that a cache holds."""
        name = session.request.session
        out = self.free(name)
        source, session.draft_cached_len = self._prefixes.longest(session.tokens)
        return [*out, CopyCache(source, name, session.draft_cached_len)] if source else out

    def free(self, name: str) -> Commands:
        """The cache of an ended session goes, if it is kept."""
        if not self._holds(name):
            return []
        self._prefixes.drop(name)
        return [DropCache(name, None)]

    def _holds(self, name: str) -> bool:
        return self._prefixes.has(name, self._block_tokens)


DraftCaches = DeviceDraftCaches | SharedDraftCaches
