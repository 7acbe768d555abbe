"""A worker: a queue, a scheduler and caches. It runs its hop for batches, hands on to the next, loops while a budget
lasts.

1. It decides on a timer of its own, never inside an arrival, so that every arrival of one instant is in view.
2. One item per session and one span per batch, the deepest that waits: what has gone far finishes first.
3. A request of an older round than the newest seen is dead; a cache shorter than a request needs is a `Miss`.
4. With a free chip and a waiting item something runs, whatever a budget says: evict idle sessions, then preempt the
   youngest.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from serving.chooser import Chooser, Tiers
from serving.item import Item
from serving.ledger import Ledger
from serving.messages import (
    HEADER_NBYTES,
    INF,
    Backlog,
    Blob,
    Command,
    Drop,
    Event,
    Finished,
    Forward,
    Joined,
    Lost,
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
from serving.policy import Policy

Commands = list[Command]


class Worker:
    def __init__(
        self,
        name: str,
        policy: Policy,
        tiers: Tiers | None = None,
        watchers: Sequence[str] = (),
        capacity_tokens: float = INF,
        row_s: float = 0.001,
    ) -> None:
        self.name, self.policy, self.watchers, self.row_s = name, policy, watchers, row_s
        own = policy.kv_cache.capacity_tokens
        self.ledger = Ledger(capacity_tokens if own is None else min(own, capacity_tokens), policy.kv_cache.keep)
        self.chooser = Chooser(tiers or {}, policy.dispatch, name)
        self.queue: dict[str, deque[Item]] = {}
        """Session -> its parts in order."""
        self.text: dict[str, tuple[int, ...]] = {}
        """Without cache reuse: the tokens to compute a session from."""
        self.held: dict[tuple[str, int, int], tuple[int, ...]] = {}
        """Drafts kept here for the head hop, so that they never travel; by (session, round, start)."""
        self.newest: dict[str, float] = {}
        """Session -> newest round seen; infinite once it is released."""
        self.sent: dict[tuple[str, int], tuple[str, Request]] = {}
        """(session, hop) -> the last hand-on, to repair when its receiver is lost."""
        self.running: list[tuple[Item, Rows]] = []
        self.job = self.timer = 0
        self.deciding = False

    def handle(self, event: Event, now: float) -> Iterable[Command]:
        match event:
            case Received(Request() as request):
                return self._receive(request, now)
            case Finished(job, tuple() as results) if job == self.job:
                return self._finish(results, now)
            case Woke(timer) if timer == self.timer and not self.running:
                self.deciding = False
                return self._dispatch(now) if self.queue else []
            case Received(Release(session)):
                return self._release(session)
            case Received(Backlog() as backlog):
                self.chooser.backlogs[backlog.node] = backlog
            case Lost(peer):
                return self._lost(peer)
            case Joined(peer):
                self.chooser.dead.discard(peer)
        return []

    # In.

    def _receive(self, m: Request, now: float) -> Commands:
        session, newest = m.rows.session, self.newest.get(m.rows.session, -1)
        if m.round < newest:
            return []
        if m.round > newest:
            self.newest[session] = m.round
            self.queue.pop(session, None)
        rows: Rows | None = m.rows
        if not self.policy.kv_cache.keep and m.route[m.hop].span.embed:
            rows = self._whole_text(m.rows)
            if rows and not rows.rule:
                return []  # a part of a prompt: its text is stored, and computed with the question
        if rows and rows.check and not rows.tokens and m.route[m.hop].span.head:
            rows = self._with_held(m.round, rows)
        if rows is None:
            return [self._miss(m)]
        self.queue.setdefault(session, deque()).append(Item(m, rows, now, rows.n))
        return self._wake(now)

    def _whole_text(self, rows: Rows) -> Rows | None:
        text = self.text.get(rows.session, ())
        if len(text) < rows.start:
            return None
        text = self.text[rows.session] = text[: rows.start] + rows.tokens
        return replace(rows, start=0, n=len(text), tokens=text)

    def _with_held(self, round_: int, rows: Rows) -> Rows | None:
        tokens = self.held.pop((rows.session, round_, rows.start), None)
        return None if tokens is None else replace(rows, tokens=tokens)

    def _wake(self, now: float) -> Commands:
        if self.running or self.deciding or not self.queue:
            return []
        self.deciding, self.timer = True, self.timer + 1
        return [Wake(now, self.timer)]

    # Decide.

    def _dispatch(self, now: float) -> Commands:
        out: Commands = []
        heads = self._heads(out)
        if not heads:
            return out
        span = max((_span(i) for i in heads), key=lambda s: s.first)
        heads = [i for i in heads if _span(i) == span]
        picked = self.policy.scheduler.pick(heads, now, self.ledger.capacity - self.ledger.used)
        if not isinstance(picked, list):
            self.timer += 1
            return [*out, Wake(picked, self.timer)]
        picked = self._fit(picked, out)
        if not picked:
            raise RuntimeError(f"{self.name}: {self.policy.scheduler} left {len(heads)} requests and a free chip")
        return [*out, self._start(picked, span)]

    def _heads(self, out: Commands) -> list[Item]:
        """The first item of every session whose cache is what it needs, oldest first; the others miss."""
        heads = []
        for session, parts in list(self.queue.items()):
            item = parts[0]
            if self._cached(item):
                heads.append(item)
            else:
                del self.queue[session]
                out.append(self._miss(item.request))
        return sorted(heads, key=lambda i: i.arrived)

    def _cached(self, item: Item) -> bool:
        return self.ledger.valid(item.rows, _span(item)) >= item.cached

    def _fit(self, picked: list[tuple[Item, int]], out: Commands) -> list[tuple[Item, int]]:
        """Admits what the cache budget holds; makes room by evicting idle sessions, for the first one also waiting
        ones.
        """
        ledger = self.ledger
        if ledger.capacity == INF or not ledger.keep:
            return picked
        fit: list[tuple[Item, int]] = []
        used = ledger.used
        for item, rows in picked:
            if not self._cached(item):
                continue  # evicted for the first one: it will miss
            used -= ledger.beyond(item.rows, _span(item), item.cached)
            victims = ledger.idle(self.queue) + ([] if fit else self._waiting_caches(item))
            for key in victims:
                if used + rows <= ledger.capacity:
                    break
                used -= ledger.lengths[key]
                ledger.evict(key)
                out.append(Drop(*key))
            if used + rows <= ledger.capacity:
                used += rows
                fit.append((item, rows))
            elif not fit:
                need = item.cached + rows
                raise RuntimeError(
                    f"{self.name}: {item.rows.session} needs {need} cached tokens, the budget is {ledger.capacity}"
                )
        return fit

    def _waiting_caches(self, spared: Item) -> list[tuple[str, int]]:
        """Caches of sessions that wait here, the youngest first."""
        young = [i for i in reversed([parts[0] for parts in self.queue.values()]) if i is not spared]
        keys = [(i.rows.session, _span(i).first) for i in young]
        return [key for key in keys if key in self.ledger.lengths]

    def _start(self, picked: list[tuple[Item, int]], span: Span) -> Start:
        self.running = []
        for item, n in picked:
            rows = item.rows.cut(item.done, item.done + n)
            item.done += n
            item.left -= n
            if not item.left:
                self._pop(rows.session)
            self.ledger.started(rows, span)
            self.running.append((item, rows))
        self.job += 1
        requests = [item.request for item, _ in self.running]
        probes = next((m.probes for m in requests if m.probes), ())
        out = tuple(m.route[m.hop].out for m in requests)
        return Start(self.job, Forward(span, tuple(rows for _, rows in self.running), out, probes))

    def _pop(self, session: str) -> None:
        parts = self.queue[session]
        parts.popleft()
        if not parts:
            del self.queue[session]

    # Out.

    def _finish(self, results: tuple[Result, ...], now: float) -> Commands:
        out: Commands = []
        batch, self.running = self.running, []
        for (item, rows), result in zip(batch, results, strict=True):
            m = item.request
            if m.round < self.newest.get(rows.session, -1):  # released or superseded while it ran
                out += self._drop_released(rows.session, m.route[m.hop].span)
                continue
            verdict = result.verdict
            rejected = rows.check - verdict.accepted if verdict and verdict.keep is None else 0
            self.ledger.finished(rows, m.route[m.hop].span, rejected)
            if m.hop + 1 < len(m.route):
                out.append(self._hand_on(m, rows, result.blob))
            elif verdict:
                out += self._answer(m, rows, verdict, now)
        return out + self._report() + self._wake(now)

    def _report(self) -> Commands:
        if not self.watchers:
            return []
        queued_s = sum(i.left for parts in self.queue.values() for i in parts) * self.row_s
        backlog = Backlog(self.name, queued_s, self.row_s, self.ledger.capacity - self.ledger.used)
        return [Send(watcher, backlog, HEADER_NBYTES) for watcher in self.watchers]

    def _hand_on(self, m: Request, rows: Rows, blob: Blob | None) -> Send:
        hop = m.hop + 1
        path = m.path if len(m.path) > hop else (*m.path, self._bind(m, rows, hop))
        to, tokens = path[hop], rows.tokens[:0]  # hidden states travel instead
        if rows.check:  # drafts go where the head is; if that is here, they never leave
            drafts = rows.tokens[-rows.check :]
            if m.route[-1].node == self.name:
                self.held[rows.session, m.round, rows.start] = drafts
            else:
                tokens = drafts
        m = replace(m, rows=replace(rows, tokens=tokens, blob=blob), hop=hop, path=path)
        if to in self.chooser.dead:
            return self._miss(m)
        self.sent[rows.session, hop] = to, m
        return Send(to, m, HEADER_NBYTES + m.rows.nbytes)

    def _bind(self, m: Request, rows: Rows, hop: int) -> str:
        """The node for a hop: the one that holds the earlier parts of this round, else a fresh choice."""
        node, last = self.sent.get((rows.session, hop), (None, None))
        if node and last and node not in self.chooser.dead and last.round == m.round:
            return node
        return self.chooser.choose(m.route[hop].node, rows.n)

    def _answer(self, m: Request, rows: Rows, verdict: Verdict, now: float) -> Commands:
        agreed = rows.start + rows.n - rows.check
        left = 0 if verdict.token in m.ends else m.budget - 1
        reply = Reply(rows.session, m.round, agreed, verdict, m.path, left)
        out: Commands = [Send(m.reply_to, reply, HEADER_NBYTES + 4)]
        return out + (self._loop(m, rows, agreed + verdict.accepted, verdict, left, now) if left else [])

    def _loop(self, m: Request, rows: Rows, start: int, verdict: Verdict, left: int, now: float) -> Commands:
        """The route goes on writing: the new token starts over at the first hop."""
        one = Rows(rows.session, start, 1, (verdict.token,), 0, rows.rule, rows.sampling)
        m = replace(m, rows=one, hop=0, budget=left)
        first = m.path[0]
        if first == self.name:
            return self._receive(m, now)
        if first in self.chooser.dead:
            return [self._miss(m)]
        self.sent[rows.session, 0] = first, m
        return [Send(first, m, HEADER_NBYTES + one.nbytes)]

    def _miss(self, m: Request) -> Send:
        return Send(m.reply_to, Miss(m.rows.session, m.round, self.name), HEADER_NBYTES)

    # Gone.

    def _lost(self, peer: str) -> Commands:
        self.chooser.dead.add(peer)
        gone = [key for key, (to, _) in self.sent.items() if to == peer]
        return [self._miss(self.sent.pop(key)[1]) for key in gone]

    def _release(self, session: str) -> Commands:
        self.newest[session] = INF
        self.queue.pop(session, None)
        self.text.pop(session, None)
        for key in [k for k in self.held if k[0] == session]:
            del self.held[key]
        for hop in [k for k in self.sent if k[0] == session]:
            del self.sent[hop]
        if any(rows.session == session for _, rows in self.running):
            return []  # its cache is in use: dropped when the batch is done
        return [Drop(*key) for key in self.ledger.forget(session)]

    def _drop_released(self, session: str, span: Span) -> Commands:
        if self.newest[session] < INF:
            return []
        self.ledger.forget(session)
        return [Drop(session, span.first)]


def _span(item: Item) -> Span:
    m = item.request
    return m.route[m.hop].span
