"""Observes the page's runs: the record of each, and the device's candidates and scores for every token."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serving.core.draft_tree import depths
from serving.messages import (
    Command,
    DraftOutcome,
    DraftWork,
    Event,
    LossCause,
    Message,
    MessageReceived,
    Outcome,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    Work,
    drafts_of,
    message_nbytes,
)
from serving.metrics.recorder import Recorder, SessionRecord

PeerCallback = Callable[[str, PeerLost | PeerRestored, float], None]
"""(session, update, now)"""


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A token that the device drafted at a position; the answer may have another one there."""

    token: int
    top_candidates: tuple[int, ...]
    """The three likeliest, best first."""
    scores: Mapping[str, float]


class RunObserver:
    """An observer of a driver.

    Args:
        devices: names of the driver's device nodes.
        remote_cloud_devices: those whose cloud is another process. Its messages are counted when they arrive, and its
            busy time is not known.
    """

    def __init__(self, devices: Sequence[str], remote_cloud_devices: frozenset[str] = frozenset()) -> None:
        self._recorder = Recorder(devices, detail=False)
        self._recorder.records = _ActiveRecords()
        self._devices, self._remote_cloud_devices = frozenset(devices), remote_cloud_devices
        self._drafted_tokens: dict[str, dict[int, list[DraftedToken]]] = {}
        self._device_of: dict[str, str] = {}
        """Device of each observed session."""
        self._lost_peers: dict[str, set[tuple[str, LossCause]]] = defaultdict(set)
        """Device -> (peer that it cannot reach now, why)."""
        self.on_peer_change: PeerCallback | None = None

    def start(self, session: str, device: str) -> None:
        self._device_of[session], self._drafted_tokens[session] = device, defaultdict(list)

    def forget(self, session: str) -> None:
        del self._device_of[session], self._drafted_tokens[session]
        self._recorder.forget(session)

    def has_lost_peer(self, device: str) -> bool:
        """True if the device was notified of a lost peer and not of its return."""
        return bool(self._lost_peers[device])

    def record(self, session: str) -> SessionRecord:
        return self._recorder.records[session]

    def drafted_token(self, session: str, position: int, token: int) -> DraftedToken | None:
        """The device's draft of `token` at a position, else its last draft there; None if there is none."""
        drafts = self._drafted_tokens[session].get(position, [])
        return next((draft for draft in drafts if draft.token == token), drafts[-1] if drafts else None)

    # Observer.

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if isinstance(event, RequestArrived) and event.request.session not in self._device_of:
            return  # its client disconnected before it began
        self._recorder.event_handled(node, event, now, commands)
        match event:
            case PeerLost() | PeerRestored() if node in self._devices:
                self._on_peer_change(node, event, now)
            case MessageReceived(Reply() | Request() as message) if node in self._remote_cloud_devices:
                self._recorder.message_sent("", node, message, message_nbytes(message), now, now)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self._recorder.work_done(node, work, outcome, begin_s, end_s)
        for draft, drafted in drafts_of(work, outcome):
            if draft.session in self._drafted_tokens:
                self._record_draft(self._drafted_tokens[draft.session], draft, drafted)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        self._recorder.message_sent(node, to, message, nbytes, now, arrives_s)

    def _on_peer_change(self, device: str, update: PeerLost | PeerRestored, now: float) -> None:
        lost, cause = self._lost_peers[device], (update.peer, update.cause)
        lost.add(cause) if isinstance(update, PeerLost) else lost.discard(cause)
        if lost and isinstance(update, PeerRestored):
            return  # another loss has not ended
        for session, of in self._device_of.items():
            if of == device and self.on_peer_change:
                self.on_peer_change(session, update, now)

    def _record_draft(
        self, drafted_tokens: dict[int, list[DraftedToken]], work: DraftWork, outcome: DraftOutcome
    ) -> None:
        for i, (position, token) in enumerate(zip(_positions(work, outcome), outcome.tokens, strict=True)):
            scores = {name: values[i] for name, values in outcome.scores.items() if i < len(values)}
            drafted_tokens[position].append(DraftedToken(token, outcome.top_candidates[i], scores))


def _positions(work: DraftWork, outcome: DraftOutcome) -> list[int]:
    """Where the drafted tokens stand: those of a tree by their depth, one behind each branch, or one after another."""
    first = work.start + work.num_inputs
    if outcome.parents is not None:
        return [first + depth for depth in depths(outcome.parents)]
    if work.branches:
        return [work.start + len(branch) for branch in work.branches]
    return [first + i for i in range(len(outcome.tokens))]


class _ActiveRecords(dict[str, SessionRecord]):
    """Records of running sessions. Late events of a finished session write to a record that is not kept."""

    def __missing__(self, session: str) -> SessionRecord:
        return SessionRecord(session, "", 0, 0.0)
