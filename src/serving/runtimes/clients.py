"""The people at the devices: they ask when their time has come, or when they have thought about the last answer."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from serving.messages import RequestArrived
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.metrics.recorder import SessionRecord

PostRequest = Callable[[float, str, RequestArrived], None]
"""(at, device, event)"""


class UnfinishedSessionsError(RuntimeError):
    """Nothing is left to happen, but somebody still waits."""


class WorkloadClients:
    """`names` are the devices that `Query.device` counts; `progress` hears of every session that ends."""

    def __init__(self, queries: "Sequence[Query]", device_names: Sequence[str], progress: Progress = silent) -> None:
        self.queries, self._device_names, self._progress = queries, device_names, progress
        self._device_of = {q.request.session: device_names[q.device] for q in queries}
        self._pending: dict[str, deque[Query]] = defaultdict(deque)
        self.ended: set[str] = set()

    def start(self, post: PostRequest) -> None:
        """Posts what is asked at a given time, and each closed loop's first question."""
        for query in self.queries:
            name = self._device_names[query.device]
            if query.arrival_s is None:
                self._pending[name].append(query)
            else:
                post(query.arrival_s, name, RequestArrived(query.request))
        for name in self._device_names:
            self._send_next(name, 0.0, post)

    def on_session_end(self, session: str, now: float, post: PostRequest, clock: str = "virtual time") -> None:
        """A session has ended: whoever waited for that asks on."""
        self.ended.add(session)
        self._progress(len(self.ended), len(self.queries), f"{now:.0f} s of {clock}")
        device = self._device_of[session]
        if self._pending[device]:
            self._send_next(device, now + self._pending[device][0].think_s, post)

    @property
    def all_ended(self) -> bool:
        """Has everybody got an answer, or been told that there is none?"""
        return len(self.ended) == len(self.queries)

    def check_all_ended(self, records: "Mapping[str, SessionRecord]") -> None:
        """Raises StalledError when somebody was never answered."""
        left = [q.request.session for q in self.queries if q.request.session not in records or not
                records[q.request.session].ending]  # fmt: skip
        if left:
            raise UnfinishedSessionsError(
                f"nothing is left to happen, and {len(left)} sessions wait: {', '.join(left[:5])}"
            )

    def _send_next(self, device: str, at: float, post: PostRequest) -> None:
        if self._pending[device]:
            post(at, device, RequestArrived(self._pending[device].popleft().request))
