"""The draft model's caches that ended sessions leave on a device, for the next session whose text begins alike.

As in a slot of llama.cpp's server (`cache_prompt`), the cache is cut to what both texts begin with; nothing is copied.
"""

from serving.core.cached_prefixes import shared_len
from serving.core.session import Session
from serving.messages import Commands, DropCache, MoveCache, TokenIds


class IdleDraftCaches:
    """
    Args:
        max_sessions: how many ended sessions leave their caches; 0: none.
    """

    def __init__(self, max_sessions: int) -> None:
        self.max_sessions = max_sessions
        self.texts: dict[str, TokenIds] = {}
        """Ended session -> the text in its cache, the longest idle first."""

    def keep(self, session: Session) -> Commands:
        """An ended session leaves its cache; the longest idle one may be freed for it."""
        name = session.request.session
        self.texts[name] = tuple(session.tokens[: session.draft_cached_len])
        return self._free(next(iter(self.texts))) if len(self.texts) > self.max_sessions else []

    def take(self, session: Session) -> Commands:
        """A session that begins gets the cache that holds most of its prompt, and computes what is behind it."""
        name, prompt = session.request.session, session.tokens[:-1]  # at least one token must be computed
        shared = {idle: shared_len(text, prompt) for idle, text in self.texts.items()}
        best = max(reversed(shared), key=shared.__getitem__, default="")
        if not shared.get(best):
            return self._free(name)
        del self.texts[best]
        session.draft_cached_len = shared[best]
        return [*self._free(name), MoveCache(best, name)] if best != name else []

    def _free(self, name: str) -> Commands:
        return [DropCache(name, None)] if self.texts.pop(name, None) is not None else []
