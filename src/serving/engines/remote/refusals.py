"""Questions that a server will not answer: whoever asks again hears what it said, and the server hears nothing."""

from collections.abc import Hashable
from threading import Lock

from serving.engines.remote.errors import RemoteError

_TRIES = 3
"""Of a question whose answer cannot be used, where the server does not say that it refuses it."""
_MOST = 1024
"""Sessions of which one is remembered; a device asks so often in a row that older ones are over."""


class Refusals:
    """Of each session the last question that failed for good; a device whose question fails begins it anew, and frees
    the session's caches first, so that these are no place for it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Hashable, int, RemoteError]] = {}
        self._lock = Lock()

    def check(self, session: str, question: Hashable) -> None:
        """Raises RemoteError for a question that is not asked again."""
        known, tries, problem = self._known.get(session, (None, 0, None))
        if problem and known == question and (problem.refused or tries >= _TRIES):
            raise RemoteError(f"{problem} (it is not asked again)", status=problem.status)

    def note(self, session: str, question: Hashable, problem: RemoteError) -> None:
        if problem.passing:
            return
        with self._lock:
            known, tries, _ = self._known.pop(session, (None, 0, None))
            self._known[session] = question, 1 + (tries if known == question else 0), problem
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
