"""Records each session from outside the nodes: tokens and their times, bytes, busy and waiting seconds."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct

from serving.messages import (
    INF,
    Command,
    DraftBatch,
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EmitTokens,
    Event,
    ForwardWork,
    GenerationRequest,
    Message,
    MessageReceived,
    Origin,
    Outcome,
    Request,
    RequestArrived,
    SequenceSlice,
    StartWork,
    Work,
    WorkFinished,
    draft_works,
    drafts_of,
    session_of,
)

TimelineInterval = tuple[str, float, float, int]
"""(lane, begin_s, end_s, tokens or bytes): one interval of a session's time line."""
LANES = ("draft", "device_layers", "cloud_draft", "prefill", "decode", "verify", "uplink", "downlink", "queue")
_LANE_INDEX = {lane: index for index, lane in enumerate(LANES)}
_INTERVAL = Struct("<bddq")
"""Lane, begin, end, amount."""
INTERVAL_FIELDS = [("lane", "i1"), ("start_s", "<f8"), ("end_s", "<f8"), ("amount", "<i8")]
"""The same for numpy; `lane` is an index of `LANES`."""


class Timeline:
    """The intervals of one session, packed: a run of thousands of devices has millions of intervals."""

    __slots__ = ("_packed",)

    def __init__(self, intervals: Iterable[TimelineInterval] = ()) -> None:
        self._packed = bytearray()
        for lane, begin_s, end_s, amount in intervals:
            self.add(lane, begin_s, end_s, amount)

    def add(self, lane: str, begin_s: float, end_s: float, amount: int) -> None:
        """Raises KeyError for an unknown lane."""
        self._packed += _INTERVAL.pack(_LANE_INDEX[lane], begin_s, end_s, amount)

    def spans(self, *lanes: str) -> list[tuple[float, float, int]]:
        """(begin_s, end_s, tokens or bytes) of the intervals on these lanes, in the order in which they were added."""
        wanted = {_LANE_INDEX[lane] for lane in lanes}
        return [each[1:] for each in _INTERVAL.iter_unpack(self._packed) if each[0] in wanted]

    @property
    def packed(self) -> bytes:
        """All intervals, as `INTERVAL_FIELDS` describes them."""
        return bytes(self._packed)

    def __len__(self) -> int:
        return len(self._packed) // _INTERVAL.size

    def __iter__(self) -> Iterator[TimelineInterval]:
        return ((LANES[lane], *interval) for lane, *interval in _INTERVAL.iter_unpack(self._packed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Timeline({list(self)})"


@dataclass(slots=True)
class SessionRecord:
    """One session; times are seconds of the run's clock."""

    session: str
    device: str
    prompt_tokens: int
    arrived_s: float
    started_s: float | None = None
    """When the device started on it: after the arrival if the device was busy with another session."""
    ended_s: float | None = None
    ending: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    """When the user got each token."""
    draft_decisions: list[DraftDecision] = field(default_factory=list)
    num_decisions: int = 0
    """Draft chunks that were verified or kept without verification."""
    num_offloaded: int = 0
    """Draft chunks about which the cloud was asked: verified or replaced."""
    num_verified: int = 0
    """Draft chunks that the cloud verified."""
    drafts_verified: int = 0
    """Drafted tokens that the cloud verified."""
    drafts_accepted: int = 0
    drafts_replaced: int = 0
    """Drafted tokens that were not sent, because the cloud wrote in their place."""
    drafted: int = 0
    discarded_tokens: int = 0
    """Tokens that a stop rule dropped: they took time to draft and were not sent."""
    draft_s: float = 0.0
    """Seconds of drafting, on the device or in the cloud."""
    lookahead_attempts: int = 0
    """Verdicts for which the device drafted ahead."""
    lookahead_position_hits: int = 0
    """Of these, the ones with the assumed position."""
    lookahead_hits: int = 0
    """Of these, the ones with the assumed position and token."""
    early_exit_tokens: int = 0
    """Drafted tokens that exited before the last layer."""
    layer_share_sum: float = 0.0
    """The sum over drafted tokens of the share of layers that ran."""
    cloud_forward_tokens: int = 0
    """Tokens that the cloud ran for it: prompt, uncached tokens and drafts."""
    node_busy_s: dict[str, float] = field(default_factory=dict)
    """Each node's part of `cloud_busy_s`."""
    uplink_nbytes: int = 0
    downlink_nbytes: int = 0
    uplink_messages: int = 0
    device_busy_s: float = 0.0
    cloud_busy_s: float = 0.0
    """Its share, by tokens, of the time of its batches."""
    cloud_queue_s: float = 0.0
    """Between a request's arrival at a worker and the start of its batch."""
    timeline: Timeline = field(default_factory=Timeline)


def _start(record: SessionRecord, now: float) -> None:
    if record.started_s is None:
        record.started_s = now


class _WorkerState:
    """The waiting sessions of one worker, and the batch on its chip."""

    __slots__ = ("arrived", "running", "running_job", "waiting_since_s")

    def __init__(self) -> None:
        self.waiting_since_s: dict[str, float] = {}
        """The time since which each session waits."""
        self.arrived: set[str] = set()
        """Sessions with a request that was in no batch yet."""
        self.running: tuple[SequenceSlice, ...] = ()
        self.running_job = -1
        """The batch's job; a draft model with chips of its own has others at the same time."""


class Recorder:
    """An observer that records sessions; `devices` are the names of the device nodes.

    Without `detail` records have no time line and no draft decisions, which are most of their bytes.
    """

    def __init__(self, devices: Sequence[str], detail: bool = True) -> None:
        self.records: dict[str, SessionRecord] = {}
        self._devices = frozenset(devices)
        self._detail = detail
        self._workers: dict[str, _WorkerState] = defaultdict(_WorkerState)

    def forget(self, session: str) -> None:
        """Forgets a session, so that a recorder can run without end; later events of it are ignored."""
        self.records.pop(session, None)
        for worker in self._workers.values():
            worker.waiting_since_s.pop(session, None)
            worker.arrived.discard(session)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        """Compares exact types: this is called for every event, and `match` takes three times as long."""
        if type(event) is MessageReceived:
            if type(event.message) is Request and node not in self._devices:
                self._request_arrived(node, event.message.slice.session, now)
        elif type(event) is WorkFinished:
            if node in self._workers:
                self._batch_finished(node, event.job, now)
        elif type(event) is RequestArrived:
            self._session_arrived(node, event.request, now)
        for command in commands:
            if type(command) is EmitTokens:
                self._tokens_emitted(command, now)
            elif type(command) is DraftDecision:
                self._draft_decided(command)
            elif type(command) is StartWork:
                self._work_started(node, command.job, command.work, now)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if isinstance(work, DraftWork):
            self._drafted(node, work, outcome, begin_s, end_s, end_s - begin_s)
        elif isinstance(work, DraftBatch):
            self._batch_drafted(node, work, outcome, begin_s, end_s)
        else:
            self._forwarded(node, work, begin_s, end_s)

    def _session_arrived(self, node: str, request: GenerationRequest, now: float) -> None:
        self.records[request.session] = SessionRecord(request.session, node, len(request.prompt), now)

    def _draft_decided(self, decision: DraftDecision) -> None:
        record = self.records[decision.session]
        accepted = decision.accepted
        record.num_decisions += 1
        if accepted is not None:
            record.num_offloaded += 1
            record.num_verified += not decision.replaced
            record.drafts_verified += decision.num_judged
            record.drafts_accepted += accepted
            record.drafts_replaced += len(decision.tokens) - decision.num_judged
            if decision.lookahead_outcome:
                record.lookahead_attempts += 1
                record.lookahead_position_hits += decision.lookahead_outcome != "missed"
                record.lookahead_hits += decision.lookahead_outcome == "hit"
        if self._detail:
            record.draft_decisions.append(decision)

    def _batch_drafted(self, node: str, batch: DraftBatch, outcome: Outcome, begin_s: float, end_s: float) -> None:
        """Gives each session its share of the chip's time, by tokens."""
        token_s = (end_s - begin_s) / max(1, sum([work.num_inputs for work in batch.works]))
        for work, drafted in drafts_of(batch, outcome):
            self._drafted(node, work, drafted, begin_s, end_s, token_s * work.num_inputs)

    def _drafted(
        self, node: str, work: DraftWork, outcome: Outcome, begin_s: float, end_s: float, busy_s: float
    ) -> None:
        record = self.records[work.session]
        tokens = len(outcome.tokens) if isinstance(outcome, DraftOutcome) else 0
        record.drafted += tokens
        if work.stop_rule.max_tokens:
            record.draft_s += busy_s
            record.discarded_tokens += isinstance(outcome, DraftOutcome) and _has_discarded(work.stop_rule, outcome)
        if isinstance(outcome, DraftOutcome) and outcome.exit_depths:
            record.early_exit_tokens += sum([depth < 1.0 for depth in outcome.exit_depths])
            record.layer_share_sum += sum(outcome.exit_depths)
        else:
            record.layer_share_sum += tokens
        if node in self._devices:
            record.device_busy_s += busy_s
        else:
            record.cloud_busy_s += busy_s
            record.node_busy_s[node] = record.node_busy_s.get(node, 0.0) + busy_s
            self._workers[node].waiting_since_s[work.session] = end_s
        if self._detail:
            record.timeline.add("draft" if node in self._devices else "cloud_draft", begin_s, end_s, tokens)

    def _forwarded(self, node: str, work: ForwardWork, begin_s: float, end_s: float) -> None:
        """Gives each session its share of a batch, by tokens."""
        records, detail, on_device = self.records, self._detail, node in self._devices
        token_s = (end_s - begin_s) / sum([seq.num_tokens for seq in work.slices])
        for seq in work.slices:
            record, n = records[seq.session], seq.num_tokens
            if on_device:
                record.device_busy_s += token_s * n
            else:
                record.cloud_busy_s += token_s * n
                record.node_busy_s[node] = record.node_busy_s.get(node, 0.0) + token_s * n
                record.cloud_forward_tokens += n
            if detail:
                lane = "verify" if seq.num_drafts else "decode" if n == 1 else "prefill"
                record.timeline.add("device_layers" if on_device else lane, begin_s, end_s, n)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        record = self.records.get(session_of(message))
        if record is None:
            return
        if node in self._devices:
            _start(record, now)
            record.uplink_nbytes += nbytes
            record.uplink_messages += 1
            lane = "uplink"
        elif to in self._devices:
            record.downlink_nbytes += nbytes
            lane = "downlink"
        else:
            return
        if self._detail and arrives_s < INF:
            record.timeline.add(lane, now, arrives_s, nbytes)

    def _work_started(self, node: str, job: int, work: Work, now: float) -> None:
        if not isinstance(work, ForwardWork):
            for draft in draft_works(work):
                _start(self.records[draft.session], now)
                if node not in self._devices:
                    self._wait_ended(self._workers[node], draft.session, now, draft.num_inputs)
            return
        if node in self._devices:
            for seq in work.slices:
                _start(self.records[seq.session], now)
            return
        worker = self._workers[node]
        worker.running, worker.running_job = work.slices, job
        arrived = worker.arrived
        for seq in work.slices:
            arrived.discard(seq.session)
            self._wait_ended(worker, seq.session, now, seq.num_tokens)

    def _wait_ended(self, worker: _WorkerState, session: str, now: float, tokens: int) -> None:
        since = worker.waiting_since_s.pop(session, now)
        if now > since:
            record = self.records[session]
            record.cloud_queue_s += now - since
            if self._detail:
                record.timeline.add("queue", since, now, tokens)

    def _request_arrived(self, node: str, session: str, now: float) -> None:
        """A later part of a request that already waits does not restart its wait."""
        worker = self._workers[node]
        if session not in worker.arrived and session in self.records:
            worker.arrived.add(session)
            worker.waiting_since_s[session] = now

    def _batch_finished(self, node: str, job: int, now: float) -> None:
        """The rest of the batch's requests, or their next tokens, wait from now on."""
        worker = self._workers[node]
        if job != worker.running_job:
            return
        for seq in worker.running:
            if seq.session in self.records:
                worker.waiting_since_s[seq.session] = now
        worker.running = ()

    def _tokens_emitted(self, emit: EmitTokens, now: float) -> None:
        record = self.records[emit.session]
        tokens = emit.tokens
        record.tokens += tokens
        record.origins += emit.origins
        record.token_times_s += [now] * len(tokens)
        if emit.ending:
            record.ending, record.ended_s = emit.ending, now


def _has_discarded(stop: DraftStopRule, drafted: DraftOutcome) -> bool:
    """True if the stop rule dropped the token at which it stopped. A kept token has the last score."""
    return (
        drafted.stopped
        and not stop.keep_last
        and min(drafted.scores.get(stop.score, ()), default=stop.threshold) >= stop.threshold
    )
