"""What is seen of each run on the page: its record, and what its device thought of every token that it wrote."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serving.messages import (
    Command,
    DraftOutcome,
    DraftWork,
    Event,
    Message,
    MessageReceived,
    Outcome,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    Work,
    message_nbytes,
)
from serving.metrics.recorder import Recorder, SessionRecord

PeerCallback = Callable[[str, PeerLost | PeerRestored, float], None]
"""(session, news, now)"""


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A token that the device wrote at some position, whoever wrote the one that stands there."""

    token: int
    top_candidates: tuple[int, ...]
    """The three likeliest, best first."""
    scores: Mapping[str, float]


class RunObserver:
    """An observer; `devices` are the names of the driver's device nodes.

    With `afar` the cloud is another process: what it says is counted where it arrives, and how busy it is nobody knows.
    """

    def __init__(self, devices: Sequence[str], remote_cloud_devices: frozenset[str] = frozenset()) -> None:
        self._recorder = Recorder(devices, detail=False)
        self._recorder.records = _ActiveRecords()
        self._devices, self._remote_cloud_devices = frozenset(devices), remote_cloud_devices
        self._drafted_tokens: dict[str, dict[int, list[DraftedToken]]] = {}
        self._device_of: dict[str, str] = {}
        """The device of each session that is watched."""
        self._lost_peers: dict[str, set[str]] = defaultdict(set)
        """Per device the peers that it cannot reach now, whether or not anybody asks it anything."""
        self.on_peer_change: PeerCallback | None = None

    def start(self, session: str, device: str) -> None:
        self._device_of[session], self._drafted_tokens[session] = device, defaultdict(list)

    def forget(self, session: str) -> None:
        del self._device_of[session], self._drafted_tokens[session]
        self._recorder.forget(session)

    def has_lost_peer(self, device: str) -> bool:
        """Has a device lost a peer, as far as it was told?"""
        return bool(self._lost_peers[device])

    def record(self, session: str) -> SessionRecord:
        return self._recorder.records[session]

    def drafted_token(self, session: str, position: int, token: int) -> DraftedToken | None:
        """What the device thought at a position: of this very token where it wrote it, else of its own last one."""
        looks = self._drafted_tokens[session].get(position, [])
        return next((look for look in looks if look.token == token), looks[-1] if looks else None)

    # The observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if isinstance(event, RequestArrived) and event.request.session not in self._device_of:
            return  # it was left before it began: nobody wants its record
        self._recorder.event_handled(node, event, now, commands)
        match event:
            case PeerLost() | PeerRestored() if node in self._devices:
                self._on_peer_change(node, event, now)
            case MessageReceived(Reply() | Request() as message) if node in self._remote_cloud_devices:
                self._recorder.message_sent("", node, message, message_nbytes(message), now, now)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self._recorder.work_done(node, work, outcome, begin_s, end_s)
        if isinstance(work, DraftWork) and isinstance(outcome, DraftOutcome) and work.session in self._drafted_tokens:
            self._record_draft(self._drafted_tokens[work.session], work, outcome)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        self._recorder.message_sent(node, to, message, nbytes, now, arrives_s)

    def _on_peer_change(self, device: str, update: PeerLost | PeerRestored, now: float) -> None:
        (self._lost_peers[device].add if isinstance(update, PeerLost) else self._lost_peers[device].discard)(
            update.peer
        )
        for session, at in self._device_of.items():
            if at == device and self.on_peer_change:
                self.on_peer_change(session, update, now)

    def _record_draft(
        self, drafted_tokens: dict[int, list[DraftedToken]], work: DraftWork, outcome: DraftOutcome
    ) -> None:
        """Branches yield a token each, a continuation as many as it drafted."""
        behind = work.start + len(work.input_tokens)
        for i, (token, tops) in enumerate(zip(outcome.tokens, outcome.top_candidates, strict=True)):
            position = work.start + len(work.branches[i]) if work.branches else behind + i
            scores = {name: values[i] for name, values in outcome.scores.items() if i < len(values)}
            drafted_tokens[position].append(DraftedToken(token, tops, scores))


class _ActiveRecords(dict[str, SessionRecord]):
    """Records of the runs under way; what still happens to one that is over goes nowhere."""

    def __missing__(self, session: str) -> SessionRecord:
        return SessionRecord(session, "", 0, 0.0)
