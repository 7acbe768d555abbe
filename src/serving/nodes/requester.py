"""One session and its policy's device slots: hears events, says commands.

`handle` settles what happened, then `_advance` asks the slots what comes next. Stale things are ignored by what they
name: a job, a timer, a round, the position a reply answers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from serving.core.ids import Numbers
from serving.core.scores import IMPORTANCE
from serving.core.session import Branch, Origins, Session, Tokens
from serving.messages import (
    INF,
    Cancelled,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Failed,
    Finished,
    Generate,
    Guess,
    Joined,
    Lost,
    Message,
    Miss,
    Outcome,
    Received,
    Reply,
    Rows,
    Start,
    Stop,
    Wake,
    Woke,
)
from serving.nodes.hop_path import Route
from serving.policy.policy import Policy
from serving.policy.slots.offload import Trained

_NO_SCORES: Mapping[str, tuple[float, ...]] = {}
_LONGEST_PATIENCE_S = 60.0
_ATTEMPTS = 64
"""Vain attempts at one question; misses and broken routes mend themselves in a few."""
_LONGEST_WAIT_S = 300.0
"""How long one question is asked in vain: a chip may be slower than a device is patient."""

Commands = list[Command]
State = Literal["running", "complete", "cancelled", "failed"]


class Requester:
    def __init__(
        self,
        session: Session,
        policy: Policy,
        route: Route,
        numbers: Numbers,
        timeout_s: float = INF,
        alone: bool = True,
    ) -> None:
        """With the chip `alone`, else a token at a time, so that other sessions' hops need not wait for a draft."""
        self.alone = alone
        self.s, self.p, self.route, self.numbers, self.timeout_s = session, policy, route, numbers, timeout_s
        self.state: State = "running"
        self.job: int | None = None
        """The job whose outcome is awaited; None while the chip owes this session nothing."""
        self.ahead: list[Branch] = []
        """The branches that this job drafts on, which an arriving verdict makes void; none where it drafts."""
        self.begun_s = 0.0
        """When that job was asked for."""
        self.timer = 0
        """The one timer under way, 0 where none is; a timer a question would fill a driver's heap."""
        self.asked_s = self.due_s = 0.0
        """When the last question was asked, and when the timer is due."""
        self.unheard = False
        """Was the last question not answered yet?"""
        self.patience_s = timeout_s
        """How long the next answer is waited for: doubled by every vain retry, reset by progress."""
        self.vain = 0
        """Attempts at the question in flight since something was agreed, and when the first of them was made."""
        self.vain_since_s = 0.0
        self.given_up = False
        self.drafts, self.probes = policy.draft.source == "model", policy.probes
        self.weighs = IMPORTANCE in self.probes
        self.looks_ahead, self.sends_drafts = policy.waiting.steps > 0, policy.verify.send
        self.goes_alone = self.drafts and (
            not route.hops or policy.early_exit.has_tail or policy.link_loss.action == "local"
        )
        """Can it come to `_alone` at all?"""
        session.offline = not self._reachable()

    # One event.

    def begin(self, now: float) -> Commands:
        self.s.seen_s = now
        out: Commands = []
        if self.route.hops and not self.s.offline and not self._stays():
            if self.p.prefill.when == "first":
                out = self._ask(now, 1, drafts=False)
            elif self.p.prefill.when == "ahead" and len(self.s.tokens) > self.s.peer + 1:
                out = self._send_ahead(now)
        if self.s.flight is not None and self.route.begins_here:
            return out  # the chip is the route's first, see `meanwhile`
        return out + self._advance(now)

    def _stays(self) -> bool:
        """Is nothing of this session to leave the device, its prompt neither?"""
        return isinstance(self.p.offload, Trained) and self.p.offload.stays(self.s)

    def handle(self, event: Event, now: float) -> Commands:
        if self.state != "running":
            return []
        if isinstance(event, Finished):
            return self._finished(event.job, event.outcome, now)
        if isinstance(event, Received):
            return self._received(event.message, now)
        match event:
            case Failed():
                return self._end("failed") if event.job == self.job else []
            case Woke():
                return self._woke(event.timer, now)
            case Lost():
                return self._lost(event.peer, now)
            case Joined():
                return self._joined(event.peer, now)
            case Cancelled():
                return self._end("cancelled")
        return []

    def _received(self, message: Message, now: float) -> Commands:
        if isinstance(message, Reply):
            return self._replied(message, now)
        if isinstance(message, Miss) and message.round >= self.s.round:
            self.s.round = message.round  # a later one than this session ever had: it is over there, and opens above
            return self._again(now)
        return []

    def _finished(self, job: int, outcome: Outcome, now: float) -> Commands:
        if job != self.job or not isinstance(outcome, Drafted):
            return []  # abandoned
        self.job, self.s.kv = None, outcome.cached
        draft = self.p.draft
        self.s.monitor.drafted(1 if self.ahead else len(outcome.tokens), self.begun_s, now)
        if self.ahead:
            self.s.drafted_ahead(outcome, self.ahead, draft.fell, draft.keep)
        else:
            self.s.drafted(outcome)
        return self._go_on(now)

    def meanwhile(self, now: float) -> Commands:
        """The chip, which this device shares with its part of the route, is free."""
        waits = self.state == "running" and self.s.flight is not None and self.job is None
        return self._meanwhile(now) if waits else []

    def _replied(self, reply: Reply, now: float) -> Commands:
        s = self.s
        if reply.round != s.round or s.flight is None or reply.at < len(s.tokens):
            return []  # late or repeated
        if reply.at > len(s.tokens):
            return self._again(now, forget=False)  # an earlier reply of this round was lost
        self.job = None  # whatever ran ahead is abandoned
        s.path, s.left, self.patience_s, self.vain = reply.path, reply.left, self.timeout_s, 0
        if self.unheard:
            self.unheard, s.network_s = False, max(0.0, now - self.asked_s - reply.spent_s)
        # A draft that did not travel was replaced: none of it accepted.
        out = self._chunk(reply.verdict.accepted, s.foreseen(reply.verdict))
        out += self._show(*s.settle(reply.verdict), now)
        if not self.p.kv_cache.device:
            s.kv = 0
        if reply.left and not s.ended:
            s.flight = ()
        else:
            s.round += 1
        out += self._advance(now)
        return out

    def _woke(self, timer: int, now: float) -> Commands:
        s = self.s
        if timer != self.timer:
            return []
        if s.flight is None or s.offline:
            self.timer = 0
            return []
        due = max(s.seen_s, self.asked_s) + self.patience_s  # progress re-arms it
        if now < due:
            self.due_s = due
            return [Wake(due, timer)]
        self.timer = 0
        s.path = s.home = ()  # whoever does not answer is not asked again before the others
        self.patience_s = max(self.timeout_s, min(2 * self.patience_s, _LONGEST_PATIENCE_S))
        return self._again(now)

    def _lost(self, peer: str, now: float) -> Commands:
        s = self.s
        s.offline, s.astray = not self._reachable(), True
        if not s.offline:
            return self._again(now) if peer in s.path else []
        if s.flight is None:
            return []
        if self.p.link_loss.action == "fail":
            return self._end("failed")
        return self._go_on_alone(now) if self.p.link_loss.action == "local" else []

    def _go_on_alone(self, now: float) -> Commands:
        s = self.s
        self.job = None
        s.round += 1
        s.flight = None
        return self._stand(now) + self._advance(now) if s.draft else self._advance(now)

    def _give_up(self, now: float) -> Commands:
        """The cloud is there and answers nothing of use: for this session it is as good as gone."""
        if self.p.link_loss.action != "local":
            return self._end("failed")
        self.given_up = self.s.offline = True
        return self._go_on_alone(now)

    def _joined(self, peer: str, now: float) -> Commands:
        s = self.s
        was, s.offline = s.offline, not self._reachable()
        if s.flight is None:
            return self._advance(now)
        if was and not s.offline:
            self.vain_since_s = now  # while nobody could be asked, nothing was asked in vain
        affected = was or self.unheard or peer in s.path  # until an answer came, nobody knows by way of whom it would
        return self._again(now, forget=False) if affected and not s.offline else []

    def _reachable(self) -> bool:
        return not self.given_up and self.route.reachable()

    # What next.

    def _advance(self, now: float) -> Commands:
        return self._end("complete") if self.s.ended else self._go_on(now)

    def _go_on(self, now: float) -> Commands:
        s = self.s
        if self.job is not None:
            return []
        if s.flight is not None:
            return self._meanwhile(now)
        alone = self.goes_alone and self._alone()
        stop = self._alone_stop() if alone else self.p.draft.plan(s) or self._unscored()
        if stop:
            return self._generate(stop, now)
        budget = 0 if alone else self._budget()  # nobody is asked when alone
        if budget:
            return self._hold(budget) if s.offline else self._ask(now, budget)
        if not s.draft:
            raise RuntimeError(f"{self.route.name}: policy {self.p.name} drafted nothing and asks nobody")
        return self._stand(now) + self._advance(now)

    def _alone(self) -> bool:
        """Will nobody check what is drafted now? Then stop rules do not apply, and each token is shown at once."""
        return self.goes_alone and (
            not self.route.hops
            or self.p.early_exit.tail(self.s)
            or (self.s.offline and self.p.link_loss.action == "local")
        )

    def _alone_stop(self) -> Stop | None:
        return None if self.s.draft else Stop(1)

    def _unscored(self) -> Stop | None:
        """A draft adopted whole is fed once, for its importance, before it is decided on."""
        return Stop(0) if self.weighs and self.s.unscored else None

    def _budget(self) -> int:
        """Tokens the route may write now; an empty draft is always asked."""
        if not self.s.draft and self.drafts:
            return 1
        return self.p.offload.ask(self.s)

    def _meanwhile(self, now: float) -> Commands:
        """A verdict is awaited: fill the drafter's cache with the prompt, then draft ahead."""
        s = self.s
        if self.drafts and s.kv == 0 and len(s.tokens) > 1:
            return self._generate(Stop(0), now)
        return self._look_ahead(now) if self.looks_ahead else []

    def _hold(self, budget: int) -> Commands:
        """The cloud is gone: fail, or let the question stand until it is back."""
        if self.p.link_loss.action == "fail":
            return self._end("failed")
        self.s.ask(self.p.verify.send, self.p.verify.rule(self.s))
        self.s.left = budget
        return []

    def _stand(self, now: float) -> Commands:
        """The draft is shown unasked; where nobody could be asked there was no decision, and no chunk to count."""
        chunk = [] if self._alone() else self._chunk(None)
        return chunk + self._show(*self.s.stand(), now)

    def _end(self, ending: Literal["complete", "cancelled", "failed"]) -> Commands:
        self.state, self.job = ending, None
        told: Commands = [Deliver(self.s.call.session, (), (), ending)]
        return told if self.keeps else told + self.route.released(self.s)

    @property
    def keeps(self) -> bool:
        """Do the caches of this session, which is over, wait for another call?"""
        return self.s.call.keep and self.state in ("complete", "cancelled")

    def _show(self, tokens: Tokens, origins: Origins, now: float) -> Commands:
        self.s.seen_s = now
        return [Deliver(self.s.call.session, tokens, origins)]

    def _chunk(self, accepted: int | None, guess: Guess = "") -> Commands:
        s = self.s
        if not s.draft:
            return []
        scores = {name: tuple(values) for name, values in s.scores.items()} if s.scores else _NO_SCORES
        return [Chunk(s.call.session, len(s.tokens), tuple(s.draft), scores, accepted, guess)]

    # Work on the own chip.

    def _generate(self, stop: Stop, now: float) -> Commands:
        s = self.s
        start, feed = s.feed()
        if not stop.cap:
            feed = feed[:-1]
        elif not self.alone and stop.cap > 1:
            stop = replace(stop, cap=1)
        return self._start(
            Generate(
                s.call.session, start, feed, stop, s.call.ends, self.probes, s.call.sampling, self.p.early_exit.layer,
                again=s.unscored if self.weighs else 0, whole=self.p.exchange.whole,
            ),
            [],
            now,
        )  # fmt: skip

    def _look_ahead(self, now: float) -> Commands:
        """One token on each guess; work cannot be cancelled, so a verdict waits for one token at most."""
        s = self.s
        if not s.guessed:
            s.guessed = True
            s.branches = [Branch(accepted, token) for accepted, token in self.p.waiting.guesses(s)]
        growing = s.growing(self.p.waiting.limit(s))
        if not growing:
            return []
        start, feeds = s.feeds_ahead(growing)
        work = Generate(
            s.call.session, start, (), Stop(1), s.call.ends, self.probes, s.call.sampling, self.p.early_exit.layer,
            feeds, whole=self.p.exchange.whole,
        )  # fmt: skip
        return self._start(work, growing, now)

    def _start(self, work: Generate, ahead: list[Branch], now: float) -> Commands:
        self.job, self.ahead, self.s.kv, self.begun_s = self.numbers.next(), ahead, work.start, now
        return [Start(self.job, work)]

    # Questions to the route.

    def _ask(self, now: float, budget: int, drafts: bool = True) -> Commands:
        s = self.s
        s.left = budget
        rows = s.ask(drafts and self.sends_drafts, self.p.verify.rule(s))
        out = self.route.requests(s, rows, budget, now)
        self.asked_s, self.unheard = now, True
        if self.timeout_s < INF and not (self.timer and self.due_s <= now + self.patience_s):
            self.timer, self.due_s = self.numbers.next(), now + self.patience_s
            out.append(Wake(self.due_s, self.timer))
        if not self.route.begins_here:  # else the route's first hop goes first
            out += self._meanwhile(now)
        return out

    def _send_ahead(self, now: float) -> Commands:
        """The prompt but its last token, which travels with the first question."""
        s = self.s
        at, n = s.peer, len(s.tokens) - 1
        out = self.route.requests(s, Rows(s.call.session, at, n - at, tuple(s.tokens[at:n])), 1, now)
        s.peer = n
        return out

    def _again(self, now: float, forget: bool = True) -> Commands:
        """The same question to a route that may have lost its caches: a new attempt."""
        s = self.s
        waiting = s.flight is not None
        if forget or s.keep is not None:  # `keep` names rows of one forward: it cannot be said twice
            s.forget_route()
        else:
            s.round += 1
        if not waiting or s.offline:
            return []
        self.vain += 1
        if self.vain == 1:
            self.vain_since_s = now
        if self.vain > _ATTEMPTS or now > self.vain_since_s + max(_LONGEST_WAIT_S, 4 * self.timeout_s):
            return self._give_up(now)
        self.job = None  # a look-ahead belongs to the old attempt
        s.flight = None
        return self._ask(now, s.left)
