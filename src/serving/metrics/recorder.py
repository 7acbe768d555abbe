"""What happened to each session, seen from outside: tokens and when the user got them, bytes, busy and waiting
seconds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.messages import (
    INF,
    Backlog,
    Begin,
    Call,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Finished,
    Forward,
    Generate,
    Message,
    Origin,
    Outcome,
    Received,
    Request,
    Rows,
    Start,
    Stop,
    Work,
)

Interval = tuple[str, float, float, int]
"""(lane, begin_s, end_s, tokens): one piece of a session's time line."""


@dataclass(slots=True)
class Record:
    """One session; times are seconds of the run's clock."""

    session: str
    device: str
    prompt_tokens: int
    arrived_s: float
    begun_s: float | None = None
    """When the device turned to it: later than it arrived where the device was busy with another."""
    ended_s: float | None = None
    ending: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)
    """Per token, when the user saw it."""
    chunks: list[Chunk] = field(default_factory=list)
    decided: int = 0
    """Draft chunks that were judged, or kept unasked."""
    asked: int = 0
    sent: int = 0
    """Drafts that were judged."""
    accepted: int = 0
    drafted: int = 0
    discarded: int = 0
    """Tokens that a stop rule looked at and dropped: drafted in time, and never sent."""
    draft_s: float = 0.0
    """How long the device wrote drafts."""
    guesses: int = 0
    """Verdicts that were prepared for, rightly in position, rightly in position and token."""
    position_hits: int = 0
    hits: int = 0
    exited: int = 0
    """Drafts that were read off before the last layer."""
    depth: float = 0.0
    """Of all drafts the share of the layers that had run, summed."""
    cloud_rows: int = 0
    node_busy_s: dict[str, float] = field(default_factory=dict)
    """Of `cloud_busy_s`, each node's."""
    """Rows that the cloud ran for it: prompt, uncached tokens and drafts."""
    uplink_nbytes: int = 0
    downlink_nbytes: int = 0
    uplink_messages: int = 0
    device_busy_s: float = 0.0
    cloud_busy_s: float = 0.0
    """Its share, by rows, of the batches it was in."""
    cloud_wait_s: float = 0.0
    """Between a request's arrival at a worker and the start of its batch."""
    line: list[Interval] = field(default_factory=list)


class _Desk:
    """What one worker has: sessions that wait, and the batch on its chip."""

    __slots__ = ("arrived", "running", "since_s")

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}
        """Since when each session waits."""
        self.arrived: set[str] = set()
        """Those that asked, and were in no batch since."""
        self.running: tuple[Rows, ...] = ()


class Recorder:
    """An observer of a driver; `devices` are the names of its device nodes.

    Without `detail` a record keeps no time line and no chunks, which are most of its bytes.
    """

    def __init__(self, devices: Sequence[str], detail: bool = True) -> None:
        self.records: dict[str, Record] = {}
        self._devices = frozenset(devices)
        self._detail = detail
        self._desks: dict[str, _Desk] = defaultdict(_Desk)

    def forget(self, session: str) -> None:
        """For who records without an end: nothing of it is kept, and what still happens to it waits nowhere."""
        self.records.pop(session, None)
        for desk in self._desks.values():
            desk.since_s.pop(session, None)
            desk.arrived.discard(session)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        """By exact type: a `match` costs three times as much, and this is called for every event."""
        if type(event) is Received:
            if type(event.message) is Request and node not in self._devices:
                self._arrives(node, event.message.rows.session, now)
        elif type(event) is Finished:
            if node in self._desks:
                self._reopen(node, now)
        elif type(event) is Begin:
            self._asked(node, event.call, now)
        for command in commands:
            if type(command) is Deliver:
                self._delivered(command, now)
            elif type(command) is Chunk:
                self._decided(command)
            elif type(command) is Start:
                self._begins(node, command.work, now)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if isinstance(work, Generate):
            self._drafted(work, outcome, begin_s, end_s)
        else:
            self._forwarded(node, work, begin_s, end_s)

    def _asked(self, node: str, call: Call, now: float) -> None:
        self.records[call.session] = Record(call.session, node, len(call.prompt), now)

    def _decided(self, chunk: Chunk) -> None:
        record = self.records[chunk.session]
        accepted = chunk.accepted
        record.decided += 1
        if accepted is not None:
            record.asked += 1
            record.sent += len(chunk.tokens)
            record.accepted += accepted
            if chunk.guess:
                record.guesses += 1
                record.position_hits += chunk.guess != "missed"
                record.hits += chunk.guess == "hit"
        if self._detail:
            record.chunks.append(chunk)

    def _drafted(self, work: Generate, outcome: Outcome, begin_s: float, end_s: float) -> None:
        record = self.records[work.session]
        tokens = len(outcome.tokens) if isinstance(outcome, Drafted) else 0
        record.drafted += tokens
        if work.stop.cap:
            record.draft_s += end_s - begin_s
            record.discarded += isinstance(outcome, Drafted) and _dropped(work.stop, outcome)
        if isinstance(outcome, Drafted) and outcome.depths:
            record.exited += sum([depth < 1.0 for depth in outcome.depths])
            record.depth += sum(outcome.depths)
        else:
            record.depth += tokens
        record.device_busy_s += end_s - begin_s
        if self._detail:
            record.line.append(("draft", begin_s, end_s, tokens))

    def _forwarded(self, node: str, work: Forward, begin_s: float, end_s: float) -> None:
        """Each session's share of a batch, by rows."""
        records, detail, on_device = self.records, self._detail, node in self._devices
        row_s = (end_s - begin_s) / sum([rows.n for rows in work.rows])
        for rows in work.rows:
            record, n = records[rows.session], rows.n
            if on_device:
                record.device_busy_s += row_s * n
            else:
                record.cloud_busy_s += row_s * n
                record.node_busy_s[node] = record.node_busy_s.get(node, 0.0) + row_s * n
                record.cloud_rows += n
            if detail:
                lane = "verify" if rows.check else "decode" if n == 1 else "prefill"
                record.line.append((lane, begin_s, end_s, n))

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        record = self.records.get(_session(message))
        if record is None:
            return
        if node in self._devices:
            if record.begun_s is None:
                record.begun_s = now
            record.uplink_nbytes += nbytes
            record.uplink_messages += 1
            lane = "uplink"
        elif to in self._devices:
            record.downlink_nbytes += nbytes
            lane = "downlink"
        else:
            return
        if self._detail and arrives_s < INF:
            record.line.append((lane, now, arrives_s, nbytes))

    def _begins(self, node: str, work: Work, now: float) -> None:
        if isinstance(work, Generate):
            record = self.records[work.session]
            if record.begun_s is None:
                record.begun_s = now
            return
        if node in self._devices:
            return
        desk = self._desks[node]
        desk.running = work.rows
        since_s, arrived = desk.since_s, desk.arrived
        for rows in work.rows:
            session = rows.session
            since = since_s.pop(session, now)
            arrived.discard(session)
            if now > since:
                record = self.records[session]
                record.cloud_wait_s += now - since
                if self._detail:
                    record.line.append(("queue", since, now, rows.n))

    def _arrives(self, node: str, session: str, now: float) -> None:
        """A later part of a request that waits already does not begin its wait anew."""
        desk = self._desks[node]
        if session not in desk.arrived and session in self.records:
            desk.arrived.add(session)
            desk.since_s[session] = now

    def _reopen(self, node: str, now: float) -> None:
        """A batch is done: what is left of its requests, or their next token, waits from here."""
        desk = self._desks[node]
        for rows in desk.running:
            if rows.session in self.records:
                desk.since_s[rows.session] = now
        desk.running = ()

    def _delivered(self, deliver: Deliver, now: float) -> None:
        record = self.records[deliver.session]
        tokens = deliver.tokens
        record.tokens += tokens
        record.origins += deliver.origins
        record.seen_s += [now] * len(tokens)
        if deliver.ending:
            record.ending, record.ended_s = deliver.ending, now


def _dropped(stop: Stop, drafted: Drafted) -> bool:
    """Did the stop rule drop the token that it stopped at? If it was kept, its score is the last one."""
    return (
        drafted.stopped and not stop.keep and min(drafted.scores.get(stop.score, ()), default=stop.below) >= stop.below
    )


def _session(message: Message) -> str:
    if isinstance(message, Request):
        return message.rows.session
    return "" if isinstance(message, Backlog) else message.session


def origins(record: Record) -> Mapping[Origin, int]:
    """How many of a session's tokens each writer wrote."""
    kinds: tuple[Origin, ...] = ("device", "offline", "accepted", "corrected", "bonus", "cloud")
    return {kind: record.origins.count(kind) for kind in kinds}
