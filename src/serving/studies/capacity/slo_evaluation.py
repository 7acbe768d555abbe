"""Which answers of a steady state were as fast as their class promises.

An observer of a steady state: who was answered as fast as promised, and what was written meanwhile.

Why verifications were late: because they waited, or because their batch took longer than batches lately do (WISP,
section 5.3, Fig. 8).
"""

from collections import defaultdict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Literal

from serving.messages import (
    INF,
    Begin,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Forward,
    Generate,
    Message,
    Outcome,
    Received,
    Request,
    Work,
)
from serving.studies.capacity.offered_load import Load
from serving.workload.slo import SloClass


@dataclass(slots=True)
class Answer:
    """One answer, from when it was asked; times are seconds of the run's clock."""

    session: str
    asked_s: float
    tokens: int = 0
    first_s: float = INF
    last_s: float = INF
    ended_s: float = INF


@dataclass(slots=True)
class Written:
    """What happened within the window, over all devices."""

    committed: int = 0
    """Tokens that users saw."""
    drafted: int = 0
    """Passes of the drafter that wrote a token, sent or not."""
    sent: int = 0
    accepted: int = 0
    verified: int = 0
    """Drafts that were judged: rounds."""


@dataclass
class Meter:
    """Answers that were asked from `begin_s` to `end_s`, and what was written within that time."""

    begin_s: float
    end_s: float
    written: Written = field(default_factory=Written)
    answers: dict[str, Answer] = field(default_factory=dict)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is Begin and self._counts(now):
            session = event.call.session
            self.answers[session] = Answer(session, now)
        for command in commands:
            if type(command) is Deliver:
                self._delivered(command, now)
            elif type(command) is Chunk and command.accepted is not None and self._counts(now):
                self.written.verified += 1
                self.written.sent += len(command.tokens)
                self.written.accepted += command.accepted

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is Generate and work.stop.cap and type(outcome) is Drafted and self._counts(begin_s):
            self.written.drafted += outcome.cached + 1 - work.start - len(work.feed)

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def _counts(self, now: float) -> bool:
        return self.begin_s <= now < self.end_s

    def _delivered(self, deliver: Deliver, now: float) -> None:
        n = len(deliver.tokens)
        if n and self._counts(now):
            self.written.committed += n
        answer = self.answers.get(deliver.session)
        if answer is None:
            return
        if n:
            answer.first_s = min(answer.first_s, now)
            answer.last_s = now
            answer.tokens += n
        if deliver.ending:
            answer.ended_s = now


Speed = Literal["asked", "first_token"]
Counts = tuple[dict[str, int], dict[str, int], dict[str, float]]
"""Answers asked, those that were too slow, and mean tokens a second of complete ones, by class."""


class Answered:
    """Judges the answers of a load; speed counts from the question on (`asked`), or from the first token on."""

    def __init__(self, load: Load, rule: Speed) -> None:
        self._rule = rule
        self._promised = {query.call.session: query.slo for query in load.queries}
        self._limits = {query.call.session: query.call.limit for query in load.queries}

    def is_known(self, meter: Meter, now: float, enough: float) -> bool:
        """Have all answers ended, or are more than `enough` of them late already?"""
        answers = meter.answers.values()
        if all(answer.ended_s < INF for answer in answers):
            return True
        return sum(self._is_late(answer, now) for answer in answers) > enough * len(answers)

    def counts(self, meter: Meter) -> Counts:
        """What has not ended is late: the run lasts as long as the slowest class's answers may."""
        asked: dict[str, int] = defaultdict(int)
        violated: dict[str, int] = defaultdict(int)
        reached: dict[str, list[float]] = defaultdict(list)
        for answer in meter.answers.values():
            name, speed = self._class(answer).name, self._speed(answer)
            asked[name] += 1
            violated[name] += speed < self._class(answer).tokens_per_s
            if 0 < speed < inf:
                reached[name].append(speed)
        return dict(asked), dict(violated), {name: fmean(own) for name, own in reached.items()}

    def _is_late(self, answer: Answer, now: float) -> bool:
        rate = self._class(answer).tokens_per_s
        if answer.ended_s < INF:
            return self._speed(answer) < rate
        return self._rule == "asked" and now > answer.asked_s + self._limits[answer.session] / rate

    def _speed(self, answer: Answer) -> float:
        """Tokens a second; 0 where the answer has not ended."""
        if answer.ended_s == INF:
            return 0.0
        asked = self._rule == "asked"
        since_s, n = (answer.asked_s, answer.tokens) if asked else (answer.first_s, answer.tokens - 1)
        return n / (answer.last_s - since_s) if answer.last_s > since_s else inf

    def _class(self, answer: Answer) -> SloClass:
        promised = self._promised[answer.session]
        assert promised is not None
        return promised


SPIKE = 1.5
"""WISP, Eq. 21: a batch that takes longer than this many times the recent mean."""
RECENT = 32
"""Batches that the recent mean is over: about two seconds of a busy cloud; the paper gives no W."""


@dataclass(frozen=True, slots=True)
class Verification:
    """One verification: how long it waited, how long its batch took, the latter over the mean of recent batches, and
    whether its answer left after the deadline (Eq. 6, 12)."""

    queue_s: float
    compute_s: float
    spike: float
    late: bool


@dataclass
class Verifications:
    """An observer of the `workers`: what they verified from `begin_s` to `end_s`."""

    workers: Container[str]
    begin_s: float
    end_s: float
    recent: int = RECENT
    events: list[Verification] = field(default_factory=list)
    _waiting: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Session -> (arrived, deadline) of its question."""
    _lately: dict[str, deque[float]] = field(default_factory=dict)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is Received and node in self.workers and type(event.message) is Request:
            request = event.message
            if request.rows.check:
                self._waiting[request.rows.session] = now, now + request.slack_s

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is not Forward or node not in self.workers:
            return
        lately = self._lately.setdefault(node, deque(maxlen=self.recent))
        compute_s = end_s - begin_s
        mean_s = sum(lately) / len(lately) if lately else compute_s
        lately.append(compute_s)
        for rows in work.rows:
            known = self._waiting.pop(rows.session, None) if rows.check else None
            if known and self.begin_s <= begin_s < self.end_s:
                arrived_s, deadline_s = known
                late = end_s > deadline_s
                self.events.append(Verification(begin_s - arrived_s, compute_s, compute_s / mean_s, late))

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def shares(events: Sequence[Verification]) -> dict[str, float]:
    """Shares of verifications that were late, and of the late ones by what dominated; mean seconds of each kind.

    What has no event is left out.
    """
    late = [one for one in events if one.late]
    kinds = {
        "in_time": [one for one in events if not one.late],
        "compute": [one for one in late if one.spike > SPIKE],
        "queue": [one for one in late if one.spike <= SPIKE],
    }
    found = {"events": float(len(events)), "late": len(late) / len(events)} if events else {}
    for kind, own in kinds.items():
        if kind != "in_time" and late:
            found[f"{kind}_dominant"] = len(own) / len(late)
        if own:
            found[f"{kind}/queue_s"] = sum(one.queue_s for one in own) / len(own)
            found[f"{kind}/compute_s"] = sum(one.compute_s for one in own) / len(own)
    return found
