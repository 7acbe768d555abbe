"""The clients at the devices: they send requests at given times, or after a think time when the last answer ended."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from serving.messages import RequestArrived
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.metrics.recorder import SessionRecord

PostRequest = Callable[[float, str, RequestArrived], None]
"""(time in s, device, event)"""


class UnfinishedSessionsError(RuntimeError):
    """No event is left, but sessions have not ended."""


class WorkloadClients:
    """`device_names` are the devices that `Query.device` counts; `progress` is called for every session that ends."""

    def __init__(self, queries: "Sequence[Query]", device_names: Sequence[str], progress: Progress = silent) -> None:
        self.queries, self._device_names, self._progress = queries, device_names, progress
        self._device_of = {q.request.session: device_names[q.device] for q in queries}
        self._pending: dict[str, deque[Query]] = defaultdict(deque)
        self.ended: set[str] = set()

    def start(self, post: PostRequest, queries: "Sequence[Query] | None" = None) -> None:
        """Posts the requests with arrival times, and each closed loop's first request; of some devices alone if their
        queries are given.
        """
        queries = self.queries if queries is None else queries
        for query in queries:
            name = self._device_names[query.device]
            if query.arrival_s is None:
                self._pending[name].append(query)
            else:
                post(query.arrival_s, name, RequestArrived(query.request))
        for device in sorted({query.device for query in queries if query.arrival_s is None}):
            self._send_next(self._device_names[device], 0.0, post)

    def on_session_end(self, session: str, now: float, post: PostRequest, clock: str = "virtual time") -> None:
        """Posts the next request of the session's device, if it is a closed loop."""
        self.ended.add(session)
        self._progress(len(self.ended), len(self.queries), f"{now:.0f} s of {clock}")
        device = self._device_of[session]
        if self._pending[device]:
            self._send_next(device, now + self._pending[device][0].think_s, post)

    @property
    def all_ended(self) -> bool:
        """True if every session ended, with an answer or an error."""
        return len(self.ended) == len(self.queries)

    def check_all_ended(self, records: "Mapping[str, SessionRecord]") -> None:
        """Raises UnfinishedSessionsError if a session never ended."""
        sessions = [q.request.session for q in self.queries]
        left = [name for name in sessions if name not in records or not records[name].ending]
        if left:
            raise UnfinishedSessionsError(
                f"nothing is left to happen, and {len(left)} sessions wait: {', '.join(left[:5])}"
            )

    def _send_next(self, device: str, at: float, post: PostRequest) -> None:
        if self._pending[device]:
            post(at, device, RequestArrived(self._pending[device].popleft().request))
