"""An observer of a steady state: who was answered as fast as promised, and what was written meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.messages import INF, Begin, Chunk, Command, Deliver, Drafted, Event, Generate, Message, Outcome, Work


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
