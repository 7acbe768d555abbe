"""What happened to each session, seen from outside: tokens and when the user got them, bytes, busy and waiting
seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.messages import (
    Begin,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Finished,
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
    """An observer of a driver; `devices` are the names of its device nodes."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.records: dict[str, Record] = {}
        self._devices = frozenset(devices)
        self._waits_since: dict[tuple[str, str], float] = {}
        self._queued: set[tuple[str, str]] = set()
        """What has arrived at a worker and was in no batch since."""
        self._running: dict[str, tuple[str, ...]] = {}
        """Worker -> the sessions of the batch on its chip."""

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        match event:
            case Begin(call):
                self.records[call.session] = Record(call.session, node, len(call.prompt), now)
            case Received(Request() as request):
                self._arrives(node, request.rows.session, now)
            case Finished(_, tuple()):
                self._reopen(node, now)
        for command in commands:
            match command:
                case Start(_, work):
                    self._begins(node, work, now)
                case Deliver():
                    self._delivered(command, now)
                case Chunk():
                    self.records[command.session].chunks.append(command)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if isinstance(work, Generate):
            record = self.records[work.session]
            tokens = len(outcome.tokens) if isinstance(outcome, Drafted) else 0
            record.drafted += tokens
            record.device_busy_s += end_s - begin_s
            record.line.append(("draft", begin_s, end_s, tokens))
            return
        total = sum(rows.n for rows in work.rows)
        for rows in work.rows:
            record = self.records[rows.session]
            share = (end_s - begin_s) * rows.n / total
            if node in self._devices or node.removesuffix(".chip") in self._devices:
                record.device_busy_s += share
            else:
                record.cloud_busy_s += share
                record.cloud_rows += rows.n
            record.line.append(
                ("verify" if rows.check else "decode" if rows.n == 1 else "prefill", begin_s, end_s, rows.n)
            )

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        session = message.rows.session if isinstance(message, Request) else getattr(message, "session", "")
        record = self.records.get(session)
        if record is None:
            return
        if node in self._devices:
            record.begun_s = now if record.begun_s is None else record.begun_s
            record.uplink_nbytes += nbytes
            record.uplink_messages += 1
            record.line.append(("uplink", now, arrives_s, nbytes))
        elif to in self._devices:
            record.downlink_nbytes += nbytes
            record.line.append(("downlink", now, arrives_s, nbytes))

    def _begins(self, node: str, work: Work, now: float) -> None:
        if isinstance(work, Generate):
            record = self.records[work.session]
            record.begun_s = now if record.begun_s is None else record.begun_s
            return
        self._running[node] = tuple(rows.session for rows in work.rows)
        for rows in work.rows:
            since = self._waits_since.pop((node, rows.session), now)
            self._queued.discard((node, rows.session))
            record = self.records[rows.session]
            record.cloud_wait_s += now - since
            if now > since:
                record.line.append(("queue", since, now, rows.n))

    def _arrives(self, node: str, session: str, now: float) -> None:
        """A later part of a request that waits already does not begin its wait anew."""
        if (node, session) not in self._queued:
            self._queued.add((node, session))
            self._waits_since[node, session] = now

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


def origins(record: Record) -> Mapping[Origin, int]:
    """How many of a session's tokens each writer wrote."""
    kinds: tuple[Origin, ...] = ("device", "offline", "accepted", "corrected", "bonus", "cloud")
    return {kind: record.origins.count(kind) for kind in kinds}
