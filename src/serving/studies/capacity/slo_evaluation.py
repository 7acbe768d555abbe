"""The answers and rounds of a load test that met their SLO, and the causes of late verifications: they waited, or their
batch took longer than recent ones (WISP, sections 3.1 and 5.3, Fig. 8).
"""

from collections import defaultdict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Literal, NamedTuple

from serving.messages import (
    INF,
    Command,
    DraftDecision,
    DraftOutcome,
    DraftWork,
    EmitTokens,
    Event,
    ForwardWork,
    Message,
    MessageReceived,
    Outcome,
    Request,
    RequestArrived,
    Work,
    drafts_of,
)
from serving.studies.capacity.offered_load import OfferedLoad
from serving.workload.slo import SloClass


@dataclass(slots=True)
class AnswerTiming:
    """The times of one answer, in seconds of the run's clock."""

    session: str
    arrived_s: float
    num_tokens: int = 0
    first_token_s: float = INF
    last_token_s: float = INF
    ended_s: float = INF
    failed: bool = False
    """True if it ended before it was complete."""


class Round(NamedTuple):
    """What the user of `session` got at once: the accepted drafts and the target's token, or one token where nothing is
    drafted (WISP, section 3.1: an iteration)."""

    session: str
    num_tokens: int
    seconds: float
    """Since the answer's last round, or since its request."""


@dataclass(slots=True)
class WindowCounts:
    """Counts over all devices within the window."""

    emitted: int = 0
    """Tokens that users got."""
    drafted: int = 0
    """Drafted tokens, sent or not."""
    drafts_verified: int = 0
    drafts_accepted: int = 0
    verifications: int = 0
    """Verified draft chunks."""


@dataclass
class LoadObserver:
    """An observer of the requests that arrive from `begin_s` to `end_s`, and of the tokens written in that time.

    `rounds` are those that end in that time, whenever their request arrived.
    """

    begin_s: float
    end_s: float
    counts: WindowCounts = field(default_factory=WindowCounts)
    answers: dict[str, AnswerTiming] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    _round_began_s: dict[str, float] = field(default_factory=dict)
    """Of each answer that has not ended."""

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is RequestArrived:
            session = event.request.session
            self._round_began_s[session] = now
            if self._in_window(now):
                self.answers[session] = AnswerTiming(session, now)
        for command in commands:
            if type(command) is EmitTokens:
                self._tokens_emitted(command, now)
            elif type(command) is DraftDecision and command.num_judged and self._in_window(now):
                self.counts.verifications += 1
                self.counts.drafts_verified += command.num_judged
                self.counts.drafts_accepted += command.accepted or 0

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is ForwardWork or not self._in_window(begin_s):
            return
        for draft, drafted in drafts_of(work, outcome):
            if draft.stop_rule.max_tokens:
                self.counts.drafted += _num_drafted(draft, drafted)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def _in_window(self, now: float) -> bool:
        return self.begin_s <= now < self.end_s

    def _tokens_emitted(self, emit: EmitTokens, now: float) -> None:
        n = len(emit.tokens)
        if n and self._in_window(now):
            self.counts.emitted += n
        self._round_done(emit, now)
        answer = self.answers.get(emit.session)
        if answer is None:
            return
        if n:
            answer.first_token_s = min(answer.first_token_s, now)
            answer.last_token_s = now
            answer.num_tokens += n
        if emit.ending:
            answer.ended_s, answer.failed = now, emit.ending != "complete"

    def _round_done(self, emit: EmitTokens, now: float) -> None:
        session, n = emit.session, len(emit.tokens)
        if n and session in self._round_began_s:
            if self._in_window(now):
                self.rounds.append(Round(session, n, now - self._round_began_s[session]))
            self._round_began_s[session] = now
        if emit.ending:
            self._round_began_s.pop(session, None)


def _num_drafted(work: DraftWork, drafted: DraftOutcome) -> int:
    """Drafted tokens, those included that a stop rule dropped: of a chain each is a pass, which caches the one before.

    Branches and trees leave no drafts in the cache.
    """
    if work.branches or work.stop_rule.tree:
        return len(drafted.tokens)
    return drafted.cached_len + 1 - work.start - len(work.input_tokens)


SpeedFrom = Literal["asked", "first_token"]
CountLate = Literal["answers", "rounds"]
SloCounts = tuple[dict[str, int], dict[str, int], dict[str, float]]
"""By class: answers, violations, and mean tokens per second of complete answers."""


class SloEvaluator:
    """Evaluates the answers of a load; speed counts from the arrival (`asked`) or from the first token.

    An answer is late if it is slower than its class promises, or if its first token comes later.
    """

    def __init__(self, load: OfferedLoad, speed_from: SpeedFrom) -> None:
        self._speed_from = speed_from
        self._slo_of = {query.request.session: query.slo for query in load.queries}
        self._max_new_tokens = {query.request.session: query.request.max_new_tokens for query in load.queries}

    def is_decided(self, observer: LoadObserver, now: float, max_late_share: float) -> bool:
        """True if all answers ended, or more than `max_late_share` of them are late."""
        answers = observer.answers.values()
        if all(answer.ended_s < INF for answer in answers):
            return True
        return sum(self._is_late(answer, now) for answer in answers) > max_late_share * len(answers)

    def counts(self, observer: LoadObserver, stopped_s: float = INF) -> SloCounts:
        """An answer that has not ended is late: the run lasts as long as the slowest class's answers may, counted from
        their requests. So with `first_token` an answer that began late is late, though it may be fast from there on.

        Of a run that was stopped before, at `stopped_s`, those count as late that are known to be by then.
        """
        asked: dict[str, int] = defaultdict(int)
        violated: dict[str, int] = defaultdict(int)
        reached: dict[str, list[float]] = defaultdict(list)
        for answer in observer.answers.values():
            name, speed = self._slo_class(answer).name, self._speed(answer)
            asked[name] += 1
            violated[name] += self._missed(answer) if stopped_s == INF else self._is_late(answer, stopped_s)
            if 0 < speed < inf:
                reached[name].append(speed)
        return dict(asked), dict(violated), {name: fmean(own) for name, own in reached.items()}

    def round_counts(self, observer: LoadObserver) -> tuple[dict[str, int], dict[str, int]]:
        """By class: rounds, and those slower than the class's tokens per second (WISP, Eq. 4)."""
        rounds: dict[str, int] = defaultdict(int)
        late: dict[str, int] = defaultdict(int)
        for one in observer.rounds:
            promised = self.slo_class(one.session)
            rounds[promised.name] += 1
            late[promised.name] += one.num_tokens < promised.tokens_per_s * one.seconds
        return dict(rounds), dict(late)

    def _is_late(self, answer: AnswerTiming, now: float) -> bool:
        rate, ttft_s = self._slo_class(answer).tokens_per_s, self._slo_class(answer).ttft_s
        if answer.ended_s < INF:
            return self._missed(answer)
        if ttft_s is not None and min(now, answer.first_token_s) > answer.arrived_s + ttft_s:
            return True
        return self._speed_from == "asked" and now > answer.arrived_s + self._max_new_tokens[answer.session] / rate

    def _missed(self, answer: AnswerTiming) -> bool:
        """True if the answer was slower than its class promises, began late or is not complete."""
        return self._speed(answer) < self._slo_class(answer).tokens_per_s or self._began_late(answer)

    def _began_late(self, answer: AnswerTiming) -> bool:
        """True if the class promises a time to the first token, and the answer's took longer."""
        ttft_s = self._slo_class(answer).ttft_s
        return ttft_s is not None and answer.first_token_s > answer.arrived_s + ttft_s

    def _speed(self, answer: AnswerTiming) -> float:
        """Tokens per second; 0 if the answer is not complete."""
        if answer.failed or answer.ended_s == INF:
            return 0.0
        asked = self._speed_from == "asked"
        since_s, n = (answer.arrived_s, answer.num_tokens) if asked else (answer.first_token_s, answer.num_tokens - 1)
        return n / (answer.last_token_s - since_s) if answer.last_token_s > since_s else inf

    def slo_class(self, session: str) -> SloClass:
        """What was promised to the session."""
        promised = self._slo_of[session]
        assert promised is not None
        return promised

    def _slo_class(self, answer: AnswerTiming) -> SloClass:
        return self.slo_class(answer.session)


SPIKE_FACTOR = 1.5
"""WISP, Eq. 21: a spike is a batch that takes longer than this factor of the recent mean."""
RECENT_BATCHES = 32
"""Batches in the recent mean: about two seconds of a busy cloud; the paper gives no W."""


@dataclass(frozen=True, slots=True)
class VerificationTiming:
    """One verification: its wait, its batch's time, the latter over the mean of recent batches, and True if its answer
    left after the deadline (Eq. 6, 12)."""

    queue_s: float
    compute_s: float
    compute_ratio: float
    late: bool


@dataclass
class VerificationObserver:
    """An observer of the verifications on `workers` from `begin_s` to `end_s`."""

    workers: Container[str]
    begin_s: float
    end_s: float
    recent_batches: int = RECENT_BATCHES
    verifications: list[VerificationTiming] = field(default_factory=list)
    _waiting: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Session -> (arrival, deadline) of its request."""
    _recent_batch_s: dict[str, deque[float]] = field(default_factory=dict)

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is MessageReceived and node in self.workers and type(event.message) is Request:
            request = event.message
            if request.slice.num_drafts:
                self._waiting[request.slice.session] = now, now + request.slack_s

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is not ForwardWork or node not in self.workers:
            return
        recent = self._recent_batch_s.setdefault(node, deque(maxlen=self.recent_batches))
        compute_s = end_s - begin_s
        mean_s = sum(recent) / len(recent) if recent else compute_s
        recent.append(compute_s)
        for seq in work.slices:
            known = self._waiting.pop(seq.session, None) if seq.num_drafts else None
            if known and self.begin_s <= begin_s < self.end_s:
                arrived_s, deadline_s = known
                late = end_s > deadline_s
                self.verifications.append(VerificationTiming(begin_s - arrived_s, compute_s, compute_s / mean_s, late))

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def lateness_shares(events: Sequence[VerificationTiming]) -> dict[str, float]:
    """The share of late verifications, of these the shares by dominant cause, and mean seconds of each kind.

    Kinds without verifications are left out.
    """
    late = [one for one in events if one.late]
    kinds = {
        "in_time": [one for one in events if not one.late],
        "compute": [one for one in late if one.compute_ratio > SPIKE_FACTOR],
        "queue": [one for one in late if one.compute_ratio <= SPIKE_FACTOR],
    }
    found = {"events": float(len(events)), "late_share": len(late) / len(events)} if events else {}
    for kind, own in kinds.items():
        prefix = kind if kind == "in_time" else f"late_by_{kind}"
        if kind != "in_time" and late:
            found[f"{kind}_dominant_share"] = len(own) / len(late)
        if own:
            found[f"{prefix}/queue_s"] = sum(one.queue_s for one in own) / len(own)
            found[f"{prefix}/compute_s"] = sum(one.compute_s for one in own) / len(own)
    return found
