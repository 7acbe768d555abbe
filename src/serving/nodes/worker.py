"""A worker: a queue, a scheduler and caches. It runs its hop for batches, hands on to the next, loops while a budget
lasts.

1. It decides on a timer of its own, never inside an arrival, so that every arrival of one instant is in view.
2. One item per session and one span per batch, the deepest that waits: what has gone far finishes first.
3. A request of an older round than the newest seen is dead; a cache shorter than a request needs is a `Miss`.
4. With a free chip and a waiting item something runs, whatever a budget says: `admit` makes room.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from serving.core.ids import Numbers
from serving.core.kv_accounting import Ledger, Room
from serving.core.link_monitor import Workload
from serving.core.queued_request import Item
from serving.hardware.estimator import UNKNOWN, Estimator
from serving.messages import (
    HEADER_NBYTES,
    INF,
    REPLY_NBYTES,
    Backlog,
    Blob,
    Command,
    Drop,
    Event,
    Failed,
    Finished,
    Forward,
    Joined,
    Lost,
    Message,
    Miss,
    Received,
    Release,
    Reply,
    Request,
    Result,
    Rows,
    Send,
    Span,
    Start,
    Verdict,
    Wake,
    Woke,
)
from serving.nodes.admission import admit, cached
from serving.nodes.node_selector import Chooser, Tiers
from serving.nodes.reservations import Commitments
from serving.nodes.session_registry import Tenancy
from serving.policy.policy import Policy
from serving.policy.slots.placement import HERE
from serving.policy.slots.scheduler import Scheduler

Commands = list[Command]

_REPORT_S = 0.25
"""A node whose sessions stay the same tells how far it is this often at most."""

_first, _arrived = attrgetter("first"), attrgetter("arrived")


class Worker:
    def __init__(
        self,
        name: str,
        policy: Policy,
        tiers: Tiers | None = None,
        watchers: Sequence[str] = (),
        capacity_tokens: float = INF,
        linger_s: float = 30.0,
        estimator: Estimator = UNKNOWN,
        scheduler: Scheduler | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        self.name, self.policy, self.watchers = name, policy, watchers
        self.linger_s, self.estimator, self.scheduler = linger_s, estimator, scheduler or policy.scheduler
        self.numbers = numbers or Numbers()
        self.workload = Workload() if policy.monitors else None
        own = policy.kv_cache.capacity_tokens
        capacity = capacity_tokens if own is None else min(own, capacity_tokens)
        self.ledger = Ledger(capacity, policy.kv_cache.keep, policy.kv_cache.block_tokens)
        self.chooser = Chooser(tiers or {}, policy.dispatch, name, policy.kv_cache.block_tokens)
        self.queue: dict[str, list[Item]] = {}
        """Session -> its parts in order."""
        self.text: dict[str, tuple[int, ...]] = {}
        """Without cache reuse: the tokens to compute a session from."""
        self.held: dict[tuple[str, int, int], Request] = {}
        """Questions whose tokens are kept here for the head hop, so that they never travel; by (session, round, end).
        """
        self.tenancy = Tenancy()
        self.commitments = Commitments(estimator)
        self.reported_s = -INF
        self.sent: dict[tuple[str, int], tuple[str, Request]] = {}
        """(session, hop) -> the last hand-on, to repair when its receiver is lost."""
        self.unsent: dict[str, Request] = {}
        """Session -> what waits until somebody of the next tier lives: its device, if told, would only ask again."""
        self.suspects: set[str] = set()
        """Sessions whose last batch failed: they run alone, so that a bad one spoils no other's."""
        self.running: list[tuple[Item, Rows]] = []
        self.running_since_s = 0.0
        self.job = self.timer = 0
        self.deciding = False

    def handle(self, event: Event, now: float) -> Commands:
        if isinstance(event, Received):
            message = event.message
            return self._asked(message, now) if isinstance(message, Request) else self._hear(message, now)
        match event:
            case Woke():
                if event.timer == self.timer and not self.running:
                    self.deciding = False
                    return self._dispatch(now) if self.queue else []
                return self._expire(event.timer, now) if event.timer in self.tenancy.leases else []
            case Finished():
                if event.job == self.job and isinstance(event.outcome, tuple):
                    return self._finish(event.outcome, now)
            case Failed():
                return self._failed(now) if event.job == self.job else []
            case Lost():
                return self._lost(event.peer, now)
            case Joined():
                return self._joined(event.peer, now)
        return []

    # In.

    def _hear(self, message: Message, now: float) -> Commands:
        match message:
            case Release():
                return self._release(message.session, now)
            case Backlog():
                self.chooser.backlogs[message.node] = message
        return []

    def _asked(self, m: Request, now: float) -> Commands:
        standing = self.tenancy.standing(m, now)
        if standing == "open":
            return self._receive(m, now)
        return [self._over(m)] if standing == "over" else []

    def _over(self, m: Request) -> Send:
        """Late, and nobody awaits an answer; or the session does go on, in rounds newer than what this Miss names."""
        session = m.rows.session
        return Send(m.reply_to, Miss(session, self.tenancy.newest[session], self.name), HEADER_NBYTES)

    def _receive(self, m: Request, now: float) -> Commands:
        if self.workload:
            self.workload.hear(m, now)
        session, rounds = m.rows.session, self.tenancy.newest
        newest = rounds.get(session, -1)
        if m.round < newest:
            return []
        if m.round > newest:
            rounds[session] = m.round
            self.queue.pop(session, None)
        span = m.route[m.hop].span
        whole = self._with_held(m) if m.rows.rule and span.head and m.hop and self._comes_back(m) else m
        rows = self._to_run(whole.rows, span) if whole else None
        if rows is None or whole is None:
            return [self._miss(m)]
        need = self.ledger.whole(rows.start + rows.n)
        if self.ledger.keep and need > self.ledger.capacity:  # in the queue it would stop the others
            raise RuntimeError(f"{session} needs {need} cached tokens, the budget is {self.ledger.capacity}")
        if not self.ledger.keep and span.embed and not rows.rule:
            return []  # a part of a prompt: its text is stored, and computed with the question
        item, parts = Item(whole, rows, span, now, rows.n, since=self.tenancy.since[session]), self.queue.get(session)
        if parts:
            parts.append(item)
        else:
            self.queue[session] = [item]
        out = self._report(now) if self.watchers and self.commitments.take(whole, span) else []
        return out if self.running or self.deciding else out + self._wake(now)

    def _to_run(self, rows: Rows, span: Span) -> Rows | None:
        """What a request comes to here: without cache reuse the whole text."""
        return rows if self.ledger.keep or not span.embed else self._whole_text(rows)

    def _whole_text(self, rows: Rows) -> Rows | None:
        text = self.text.get(rows.session, ())
        if len(text) < rows.start:
            return None
        text = self.text[rows.session] = text[: rows.start] + rows.tokens
        return replace(rows, start=0, n=len(text), tokens=text)

    def _comes_back(self, m: Request) -> bool:
        """Does the route end here, on the device that asked? Then no token of the question leaves it."""
        return m.reply_to == self.name and m.route[-1].node == HERE

    def _with_held(self, m: Request) -> Request | None:
        """A question that came back, with what was kept of it here; None where that is not known any more."""
        rows = m.rows
        kept = self.held.pop((rows.session, m.round, rows.start + rows.n), None)
        if kept is None:
            return None
        return replace(m, rows=replace(rows, tokens=kept.rows.tokens, odds=kept.rows.odds), ends=kept.ends)

    def _wake(self, now: float) -> Commands:
        if self.running or self.deciding or not self.queue:
            return []
        self.deciding, self.timer = True, self.numbers.next()
        return [Wake(now, self.timer)]

    # Decide.

    def _dispatch(self, now: float) -> Commands:
        out: Commands = []
        heads = self._heads(out)
        if not heads:
            return out
        if self.suspects:
            heads = [i for i in heads if i.rows.session in self.suspects][:1] or heads
        span = max([i.span for i in heads], key=_first)
        heads = [i for i in heads if i.span is span or i.span == span]
        picked = self.scheduler.pick(heads, now, Room(self.ledger, self.queue), self.estimator)
        if not isinstance(picked, list):
            self.timer = self.numbers.next()
            return [*out, Wake(picked, self.timer)]
        picked, evicted = admit(picked, self.ledger, self.queue)
        out += [Drop(*key) for key in evicted]
        if not picked:
            raise RuntimeError(f"{self.name}: {self.policy.scheduler} left {len(heads)} requests and a free chip")
        return [*out, self._start(picked, span, now)]

    def _heads(self, out: Commands) -> list[Item]:
        """The first item of every session whose cache is what it needs, oldest first; the others miss."""
        heads: list[Item] = []
        missed: list[Item] = []
        for parts in self.queue.values():
            (heads if cached(parts[0], self.ledger) else missed).append(parts[0])
        for item in missed:
            del self.queue[item.rows.session]
            out.append(self._miss(item.request))
        heads.sort(key=_arrived)
        return heads

    def _start(self, picked: list[tuple[Item, int]], span: Span, now: float) -> Start:
        self.running = [(item, self._taken(item, n)) for item, n in picked]
        self.running_since_s = now
        self.job = self.numbers.next()
        requests = [item.request for item, _ in picked]
        probes = next((m.probes for m in requests if m.probes), ())
        out = tuple([_out(item.request, rows) for item, rows in self.running])
        return Start(self.job, Forward(span, tuple([rows for _, rows in self.running]), out, probes))

    def _taken(self, item: Item, n: int) -> Rows:
        """The next `n` rows of an item, which leaves the queue with its last."""
        rows = item.rows if n == item.rows.n else item.rows.cut(item.done, item.done + n)
        item.take(n)
        if not item.left:
            self._pop(rows.session)
        self.ledger.started(rows, item.span)
        return rows

    def _pop(self, session: str) -> None:
        parts = self.queue[session]
        if len(parts) == 1:
            del self.queue[session]
        else:
            del parts[0]

    # Out.

    def _finish(self, results: tuple[Result, ...], now: float) -> Commands:
        out: Commands = []
        batch, self.running = self.running, []
        if self.workload and (span := batch[0][0].span).first < span.last:
            self.workload.batch(sum([rows.n for _, rows in batch]), now - self.running_since_s)
        if self.suspects:
            self.suspects.difference_update([rows.session for _, rows in batch])
        newest = self.tenancy.newest
        for (item, rows), result in zip(batch, results, strict=True):
            m = item.request
            if m.round < newest.get(rows.session, INF):  # released or superseded while it ran
                out += self._drop_released(rows.session)
                continue
            verdict = result.verdict
            rejected = rows.check - verdict.accepted if verdict and verdict.keep is None else 0
            self.ledger.finished(rows, item.span, rejected)
            self.commitments.done(rows.session, rows.n)
            if m.hop + 1 < len(m.route):
                if result.blob:
                    out += self._hand_on(item, rows, result.blob, now)
            elif verdict:
                out += self._answer(item, rows, verdict, now)
        if self.watchers and now >= self.reported_s + _REPORT_S:
            out += self._report(now)
        return out + self._wake(now)

    def _report(self, now: float) -> Commands:
        """What those who choose among this node and its peers go by, once it knows how fast it is."""
        if not self.commitments.timed:
            return []
        self.reported_s = now
        backlog = self.commitments.backlog(self.name, self.ledger)
        return [Send(watcher, backlog, HEADER_NBYTES) for watcher in self.watchers]

    def _hand_on(self, item: Item, rows: Rows, blob: Blob | None, now: float) -> Commands:
        m, here_s = item.request, now - item.arrived
        hop = m.hop + 1
        path = self._bound(m, rows, hop)
        to, ends, tokens, odds = path[hop], m.ends, rows.tokens[:0], rows.odds  # hidden states travel instead
        if rows.check:  # drafts go where the head is
            tokens = rows.tokens[-rows.check :]
        if self._comes_back(m):  # neither drafts nor what they were drawn from leave
            if rows.rule:
                kept = replace(m, rows=replace(rows, tokens=tokens))
                self.held[rows.session, m.round, rows.start + rows.n] = kept
            ends, tokens, odds = (), (), ()
        rows = replace(rows, tokens=tokens, blob=blob, odds=odds, skip=0)
        m = replace(
            m, rows=rows, hop=hop, path=path, ends=ends, slack_s=m.slack_s - here_s, spent_s=m.spent_s + here_s,
            **self._seen(m, now),
        )  # fmt: skip
        return self._send(to, m)

    def _send(self, to: str, m: Request) -> Commands:
        if to not in self.chooser.dead:
            self.sent[m.rows.session, m.hop] = to, m
            return [Send(to, m, HEADER_NBYTES + m.rows.nbytes)]
        if self.chooser.reachable(m.route[m.hop].node):  # asked anew it goes to another
            return [self._miss(m)]
        self.unsent[m.rows.session] = m
        return []

    def _seen(self, m: Request, now: float) -> dict[str, Any]:
        """What a monitored request says of its way so far."""
        if not self.workload:
            return {}
        return {"sent_s": now, "condition": None if m.reply_to == self.name else self.workload.added(m)}

    def _bound(self, m: Request, rows: Rows, hop: int) -> tuple[str, ...]:
        """The path with a node for a hop: the one that has had this session, else a fresh choice; where it is lost and
        everything is sent again, another.
        """
        tier, last = m.route[hop].node, self.sent.get((rows.session, hop))
        node = m.path[hop] if len(m.path) > hop else ""
        if last and (not node or last[1].round == m.round):  # an earlier part of this attempt went there
            node = last[0]
        if not node or (node in self.chooser.dead and not rows.start):
            node = m.reply_to if tier == HERE else self.chooser.choose(tier, rows, m.budget)
        return (*m.path[:hop], node, *m.path[hop + 1 :])

    def _answer(self, item: Item, rows: Rows, verdict: Verdict, now: float) -> Commands:
        m = item.request
        agreed = rows.start + rows.n - rows.check
        left = 0 if verdict.token in m.ends else m.budget - 1
        condition = self.workload.added(m) if self.workload and m.reply_to != self.name else None
        reply = Reply(rows.session, m.round, agreed, verdict, m.path, left, m.spent_s + now - item.arrived, condition)
        out: Commands = [Send(m.reply_to, reply, REPLY_NBYTES)]
        if left:
            out += self._loop(m, rows, agreed + verdict.accepted, verdict, left, now)
        return out

    def _loop(self, m: Request, rows: Rows, start: int, verdict: Verdict, left: int, now: float) -> Commands:
        """The route goes on writing: the new token starts over at the first hop."""
        one = Rows(rows.session, start, 1, (verdict.token,), 0, rows.rule, rows.sampling)
        slack_s = 1 / m.rate if m.rate else INF
        m = replace(m, rows=one, hop=0, budget=left, slack_s=slack_s, value=1.0, spent_s=0.0)
        first = m.path[0]
        if first == self.name:
            return self._receive(m, now)
        return self._send(first, m)

    def _miss(self, m: Request) -> Send:
        self.commitments.drop(m.rows.session)
        return Send(m.reply_to, Miss(m.rows.session, m.round, self.name), HEADER_NBYTES)

    # Gone.

    def _lost(self, peer: str, now: float) -> Commands:
        self.chooser.lost(peer)
        gone = [key for key, (to, _) in self.sent.items() if to == peer]
        missed = [self._miss(self.sent.pop(key)[1]) for key in gone]
        return [*missed, *self._lease(peer, now), *self._stranded(peer), *(self._report(now) if self.watchers else ())]

    def _joined(self, peer: str, now: float) -> Commands:
        self.chooser.joined(peer)
        unsent, self.unsent = self.unsent, {}
        missed = [self._miss(m) for m in unsent.values()]
        return [*missed, *(self._report(now) if peer in self.watchers else ())]

    def _stranded(self, peer: str) -> Commands:
        """What came here by way of a peer that is lost is asked anew, and may come another way: nobody counts on it any
        more, and its caches go, but for what is under way.
        """
        found = self.tenancy.stranded(peer, self.name)
        busy = self.queue.keys() | {rows.session for _, rows in self.running}
        for session in found:
            self.commitments.drop(session)
        idle = [session for session in found if session not in busy]
        self.tenancy.close(idle)
        return [command for session in idle for command in self._forget(session)]

    def _lease(self, peer: str, now: float) -> Commands:
        timer = self.tenancy.lease(peer, now)
        return [] if timer is None else [Wake(now + self.linger_s, timer)]

    def _expire(self, timer: int, now: float) -> Commands:
        out = [command for session in self.tenancy.expire(timer) for command in self._forget(session)]
        return out + self._report(now) if self.watchers else out

    def _failed(self, now: float) -> Commands:
        """The chip broke down in the middle of a batch: all that was in it begins anew, each on its own."""
        batch, self.running = self.running, []
        out: Commands = []
        for item, rows in batch:
            out += [Drop(*key) for key in self.ledger.forget(rows.session)]
            if item.request.round >= self.tenancy.newest.get(rows.session, INF):
                self.queue.pop(rows.session, None)
                self.suspects.add(rows.session)
                out.append(self._miss(item.request))
        return out + self._wake(now)

    def _release(self, session: str, now: float) -> Commands:
        """Whoever it was handed on to hears it from here: the device may not reach that node itself."""
        sent = [each for (name, _), each in self.sent.items() if name == session]
        onward = {to for to, m in sent if to not in (m.reply_to, self.name)} if self.tenancy.is_open(session) else ()
        self.tenancy.release(session)
        told = self._report(now) if self.commitments.drop(session) else []
        onwards = [Send(node, Release(session), HEADER_NBYTES) for node in sorted(onward)]
        return [*self._forget(session), *onwards, *told]

    def _forget(self, session: str) -> Commands:
        self.tenancy.owners.pop(session, None)
        self.tenancy.ways.pop(session, None)
        self.commitments.drop(session)
        self.queue.pop(session, None)
        self.suspects.discard(session)
        self.text.pop(session, None)
        self.unsent.pop(session, None)
        for key in [k for k in self.held if k[0] == session]:
            del self.held[key]
        for hop in [k for k in self.sent if k[0] == session]:
            del self.sent[hop]
        if any(rows.session == session for _, rows in self.running):
            return []  # its cache is in use: dropped when the batch is done
        return [Drop(*key) for key in self.ledger.forget(session)]

    def _drop_released(self, session: str) -> Commands:
        return [] if self.tenancy.is_open(session) else [Drop(*key) for key in self.ledger.forget(session)]


def _out(m: Request, rows: Rows) -> str:
    """Which hidden states are exported: of a part of a prompt none where all that follows is the head, which is not
    asked, and it wants the last only.
    """
    hop, last = m.route[m.hop], m.hop + 1 == len(m.route)
    if last:
        return hop.out
    after = m.route[m.hop + 1].span
    return "" if not rows.rule and after.first == after.last and hop.out == "last" else hop.out
