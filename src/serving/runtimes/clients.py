"""The people at the devices: they ask when their time has come, or when they have thought about the last answer."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from serving.messages import Begin
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.metrics.recorder import Record

Post = Callable[[float, str, Begin], None]
"""(at, device, event)"""


class StalledError(RuntimeError):
    """Nothing is left to happen, but somebody still waits."""


class Users:
    """`names` are the devices that `Query.device` counts; `progress` hears of every session that ends."""

    def __init__(self, queries: "Sequence[Query]", names: Sequence[str], progress: Progress = silent) -> None:
        self.queries, self._names, self._progress = queries, names, progress
        self._device = {q.call.session: names[q.device] for q in queries}
        self._next: dict[str, deque[Query]] = defaultdict(deque)
        self.ended: set[str] = set()

    def ask(self, post: Post) -> None:
        """Posts what is asked at a given time, and each closed loop's first question."""
        for query in self.queries:
            name = self._names[query.device]
            if query.at_s is None:
                self._next[name].append(query)
            else:
                post(query.at_s, name, Begin(query.call))
        for name in self._names:
            self._ask_next(name, 0.0, post)

    def hear(self, session: str, now: float, post: Post, clock: str = "virtual time") -> None:
        """A session has ended: whoever waited for that asks on."""
        self.ended.add(session)
        self._progress(len(self.ended), len(self.queries), f"{now:.0f} s of {clock}")
        device = self._device[session]
        if self._next[device]:
            self._ask_next(device, now + self._next[device][0].think_s, post)

    @property
    def over(self) -> bool:
        """Has everybody got an answer, or been told that there is none?"""
        return len(self.ended) == len(self.queries)

    def check(self, records: "Mapping[str, Record]") -> None:
        """Raises StalledError when somebody was never answered."""
        left = [q.call.session for q in self.queries if q.call.session not in records or not
                records[q.call.session].ending]  # fmt: skip
        if left:
            raise StalledError(f"nothing is left to happen, and {len(left)} sessions wait: {', '.join(left[:5])}")

    def _ask_next(self, device: str, at: float, post: Post) -> None:
        if self._next[device]:
            post(at, device, Begin(self._next[device].popleft().call))
