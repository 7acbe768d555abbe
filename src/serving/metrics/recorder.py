"""What happened to each session, seen from outside: tokens and when the user got them, bytes, busy and waiting
seconds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.messages import (
    INF,
    Command,
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EmitTokens,
    Event,
    ForwardWork,
    GenerationRequest,
    LoadReport,
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
)

TimelineInterval = tuple[str, float, float, int]
"""(lane, begin_s, end_s, tokens): one piece of a session's time line."""


@dataclass(slots=True)
class SessionRecord:
    """One session; times are seconds of the run's clock."""

    session: str
    device: str
    prompt_tokens: int
    arrived_s: float
    started_s: float | None = None
    """When the device turned to it: later than it arrived where the device was busy with another."""
    ended_s: float | None = None
    ending: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    """Per token, when the user saw it."""
    draft_decisions: list[DraftDecision] = field(default_factory=list)
    num_decisions: int = 0
    """Draft chunks that were judged, or kept unasked."""
    num_offloaded: int = 0
    drafts_verified: int = 0
    """Drafts that were judged."""
    drafts_accepted: int = 0
    drafted: int = 0
    discarded_tokens: int = 0
    """Tokens that a stop rule looked at and dropped: drafted in time, and never sent."""
    draft_s: float = 0.0
    """How long the device wrote drafts."""
    lookahead_attempts: int = 0
    """Verdicts that were prepared for, rightly in position, rightly in position and token."""
    lookahead_position_hits: int = 0
    lookahead_hits: int = 0
    early_exit_tokens: int = 0
    """Drafts that were read off before the last layer."""
    layer_share_sum: float = 0.0
    """Of all drafts the share of the layers that had run, summed."""
    cloud_forward_tokens: int = 0
    node_busy_s: dict[str, float] = field(default_factory=dict)
    """Of `cloud_busy_s`, each node's."""
    """Rows that the cloud ran for it: prompt, uncached tokens and drafts."""
    uplink_nbytes: int = 0
    downlink_nbytes: int = 0
    uplink_messages: int = 0
    device_busy_s: float = 0.0
    cloud_busy_s: float = 0.0
    """Its share, by rows, of the batches it was in."""
    cloud_queue_s: float = 0.0
    """Between a request's arrival at a worker and the start of its batch."""
    timeline: list[TimelineInterval] = field(default_factory=list)


class _WorkerState:
    """What one worker has: sessions that wait, and the batch on its chip."""

    __slots__ = ("arrived", "running", "waiting_since_s")

    def __init__(self) -> None:
        self.waiting_since_s: dict[str, float] = {}
        """Since when each session waits."""
        self.arrived: set[str] = set()
        """Those that asked, and were in no batch since."""
        self.running: tuple[SequenceSlice, ...] = ()


class Recorder:
    """An observer of a driver; `devices` are the names of its device nodes.

    Without `detail` a record keeps no time line and no chunks, which are most of its bytes.
    """

    def __init__(self, devices: Sequence[str], detail: bool = True) -> None:
        self.records: dict[str, SessionRecord] = {}
        self._devices = frozenset(devices)
        self._detail = detail
        self._workers: dict[str, _WorkerState] = defaultdict(_WorkerState)

    def forget(self, session: str) -> None:
        """For who records without an end: nothing of it is kept, and what still happens to it waits nowhere."""
        self.records.pop(session, None)
        for desk in self._workers.values():
            desk.waiting_since_s.pop(session, None)
            desk.arrived.discard(session)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        """By exact type: a `match` costs three times as much, and this is called for every event."""
        if type(event) is MessageReceived:
            if type(event.message) is Request and node not in self._devices:
                self._request_arrived(node, event.message.slice.session, now)
        elif type(event) is WorkFinished:
            if node in self._workers:
                self._batch_finished(node, now)
        elif type(event) is RequestArrived:
            self._session_arrived(node, event.request, now)
        for command in commands:
            if type(command) is EmitTokens:
                self._tokens_emitted(command, now)
            elif type(command) is DraftDecision:
                self._draft_decided(command)
            elif type(command) is StartWork:
                self._work_started(node, command.work, now)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if isinstance(work, DraftWork):
            self._drafted(work, outcome, begin_s, end_s)
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
            record.drafts_verified += len(decision.tokens)
            record.drafts_accepted += accepted
            if decision.lookahead_outcome:
                record.lookahead_attempts += 1
                record.lookahead_position_hits += decision.lookahead_outcome != "missed"
                record.lookahead_hits += decision.lookahead_outcome == "hit"
        if self._detail:
            record.draft_decisions.append(decision)

    def _drafted(self, work: DraftWork, outcome: Outcome, begin_s: float, end_s: float) -> None:
        record = self.records[work.session]
        tokens = len(outcome.tokens) if isinstance(outcome, DraftOutcome) else 0
        record.drafted += tokens
        if work.stop_rule.max_tokens:
            record.draft_s += end_s - begin_s
            record.discarded_tokens += isinstance(outcome, DraftOutcome) and _has_discarded(work.stop_rule, outcome)
        if isinstance(outcome, DraftOutcome) and outcome.exit_depths:
            record.early_exit_tokens += sum([depth < 1.0 for depth in outcome.exit_depths])
            record.layer_share_sum += sum(outcome.exit_depths)
        else:
            record.layer_share_sum += tokens
        record.device_busy_s += end_s - begin_s
        if self._detail:
            record.timeline.append(("draft", begin_s, end_s, tokens))

    def _forwarded(self, node: str, work: ForwardWork, begin_s: float, end_s: float) -> None:
        """Each session's share of a batch, by rows."""
        records, detail, on_device = self.records, self._detail, node in self._devices
        row_s = (end_s - begin_s) / sum([rows.num_tokens for rows in work.slices])
        for rows in work.slices:
            record, n = records[rows.session], rows.num_tokens
            if on_device:
                record.device_busy_s += row_s * n
            else:
                record.cloud_busy_s += row_s * n
                record.node_busy_s[node] = record.node_busy_s.get(node, 0.0) + row_s * n
                record.cloud_forward_tokens += n
            if detail:
                lane = "verify" if rows.num_drafts else "decode" if n == 1 else "prefill"
                record.timeline.append((lane, begin_s, end_s, n))

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        record = self.records.get(_session(message))
        if record is None:
            return
        if node in self._devices:
            if record.started_s is None:
                record.started_s = now
            record.uplink_nbytes += nbytes
            record.uplink_messages += 1
            lane = "uplink"
        elif to in self._devices:
            record.downlink_nbytes += nbytes
            lane = "downlink"
        else:
            return
        if self._detail and arrives_s < INF:
            record.timeline.append((lane, now, arrives_s, nbytes))

    def _work_started(self, node: str, work: Work, now: float) -> None:
        if isinstance(work, DraftWork):
            record = self.records[work.session]
            if record.started_s is None:
                record.started_s = now
            return
        if node in self._devices:
            return
        desk = self._workers[node]
        desk.running = work.slices
        since_s, arrived = desk.waiting_since_s, desk.arrived
        for rows in work.slices:
            session = rows.session
            since = since_s.pop(session, now)
            arrived.discard(session)
            if now > since:
                record = self.records[session]
                record.cloud_queue_s += now - since
                if self._detail:
                    record.timeline.append(("queue", since, now, rows.num_tokens))

    def _request_arrived(self, node: str, session: str, now: float) -> None:
        """A later part of a request that waits already does not begin its wait anew."""
        desk = self._workers[node]
        if session not in desk.arrived and session in self.records:
            desk.arrived.add(session)
            desk.waiting_since_s[session] = now

    def _batch_finished(self, node: str, now: float) -> None:
        """A batch is done: what is left of its requests, or their next token, waits from here."""
        desk = self._workers[node]
        for rows in desk.running:
            if rows.session in self.records:
                desk.waiting_since_s[rows.session] = now
        desk.running = ()

    def _tokens_emitted(self, emit: EmitTokens, now: float) -> None:
        record = self.records[emit.session]
        tokens = emit.tokens
        record.tokens += tokens
        record.origins += emit.origins
        record.token_times_s += [now] * len(tokens)
        if emit.ending:
            record.ending, record.ended_s = emit.ending, now


def _has_discarded(stop: DraftStopRule, drafted: DraftOutcome) -> bool:
    """Did the stop rule drop the token that it stopped at? If it was kept, its score is the last one."""
    return (
        drafted.stopped
        and not stop.keep_last
        and min(drafted.scores.get(stop.score, ()), default=stop.threshold) >= stop.threshold
    )


def _session(message: Message) -> str:
    if isinstance(message, Request):
        return message.slice.session
    return "" if isinstance(message, LoadReport) else message.session


def count_origins(record: SessionRecord) -> Mapping[Origin, int]:
    """How many of a session's tokens each writer wrote."""
    kinds: tuple[Origin, ...] = ("device", "offline", "accepted", "corrected", "bonus", "cloud")
    return {kind: record.origins.count(kind) for kind in kinds}
