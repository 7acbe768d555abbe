"""What happened to each session, seen from outside: tokens and when the user got them, bytes, busy and waiting
seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.messages import (
    INF,
    Backlog,
    Begin,
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
    Start,
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
    cloud_rows: int = 0
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


class Recorder:
    """An observer of a driver; `devices` are the names of its device nodes.

    Without `detail` a record keeps no time line and no chunks, which are most of its bytes.
    """

    def __init__(self, devices: Sequence[str], detail: bool = True) -> None:
        self.records: dict[str, Record] = {}
        self._devices = frozenset(devices)
        self._detail = detail
        self._waits_since: dict[tuple[str, str], float] = {}
        self._queued: set[tuple[str, str]] = set()
        """What has arrived at a worker and was in no batch since."""
        self._running: dict[str, tuple[str, ...]] = {}
        """Worker -> the sessions of the batch on its chip."""

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        match event:
            case Received():
                if isinstance(event.message, Request):
                    self._arrives(node, event.message.rows.session, now)
            case Finished():
                if node in self._running:
                    self._reopen(node, now)
            case Begin():
                call = event.call
                self.records[call.session] = Record(call.session, node, len(call.prompt), now)
        for command in commands:
            match command:
                case Start():
                    self._begins(node, command.work, now)
                case Deliver():
                    self._delivered(command, now)
                case Chunk():
                    self._decided(command)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if isinstance(work, Generate):
            self._drafted(work, outcome, begin_s, end_s)
        elif node in self._devices or node.removesuffix(".chip") in self._devices:
            self._forwarded(work, begin_s, end_s, on_device=True)
        else:
            self._forwarded(work, begin_s, end_s, on_device=False)

    def _decided(self, chunk: Chunk) -> None:
        record = self.records[chunk.session]
        record.decided += 1
        if chunk.accepted is not None:
            record.asked += 1
            record.sent += len(chunk.tokens)
            record.accepted += chunk.accepted
        if self._detail:
            record.chunks.append(chunk)

    def _drafted(self, work: Generate, outcome: Outcome, begin_s: float, end_s: float) -> None:
        record = self.records[work.session]
        tokens = len(outcome.tokens) if isinstance(outcome, Drafted) else 0
        record.drafted += tokens
        record.device_busy_s += end_s - begin_s
        if self._detail:
            record.line.append(("draft", begin_s, end_s, tokens))

    def _forwarded(self, work: Forward, begin_s: float, end_s: float, on_device: bool) -> None:
        """Each session's share of a batch, by rows."""
        row_s = (end_s - begin_s) / sum([rows.n for rows in work.rows])
        for rows in work.rows:
            record = self.records[rows.session]
            if on_device:
                record.device_busy_s += row_s * rows.n
            else:
                record.cloud_busy_s += row_s * rows.n
                record.cloud_rows += rows.n
            if self._detail:
                lane = "verify" if rows.check else "decode" if rows.n == 1 else "prefill"
                record.line.append((lane, begin_s, end_s, rows.n))

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
        self._running[node] = tuple([rows.session for rows in work.rows])
        for rows in work.rows:
            place = node, rows.session
            since = self._waits_since.pop(place, now)
            self._queued.discard(place)
            if now > since:
                record = self.records[rows.session]
                record.cloud_wait_s += now - since
                if self._detail:
                    record.line.append(("queue", since, now, rows.n))

    def _arrives(self, node: str, session: str, now: float) -> None:
        """A later part of a request that waits already does not begin its wait anew."""
        place = node, session
        if place not in self._queued:
            self._queued.add(place)
            self._waits_since[place] = now

    def _reopen(self, node: str, now: float) -> None:
        """A batch is done: what is left of its requests, or their next token, waits from here."""
        for session in self._running.pop(node, ()):
            self._waits_since[node, session] = now

    def _delivered(self, deliver: Deliver, now: float) -> None:
        record = self.records[deliver.session]
        record.tokens.extend(deliver.tokens)
        record.origins.extend(deliver.origins)
        record.seen_s.extend([now] * len(deliver.tokens))
        if deliver.ending:
            record.ending, record.ended_s = deliver.ending, now


def _session(message: Message) -> str:
    if isinstance(message, Request):
        return message.rows.session
    return "" if isinstance(message, Backlog) else message.session


def origins(record: Record) -> Mapping[Origin, int]:
    """How many of a session's tokens each writer wrote."""
    kinds: tuple[Origin, ...] = ("device", "offline", "accepted", "corrected", "bonus", "cloud")
    return {kind: record.origins.count(kind) for kind in kinds}
