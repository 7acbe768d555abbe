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

from serving.core.ids import IdGenerator
from serving.core.kv_accounting import KVAccounting, MemoryBudget, admit, has_required_cache
from serving.core.link_monitor import NodeMonitor
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import ZERO_ESTIMATOR, Estimator
from serving.messages import (
    HEADER_NBYTES,
    INF,
    REPLY_NBYTES,
    CacheMiss,
    Commands,
    DropCache,
    Event,
    ForwardWork,
    LoadReport,
    Message,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Release,
    Reply,
    Request,
    SendMessage,
    SequenceSlice,
    SetTimer,
    SliceOutcome,
    Span,
    StartWork,
    TensorRef,
    TimerFired,
    Verdict,
    WorkFailed,
    WorkFinished,
)
from serving.nodes.hop_path import NodeSelector, TierNodes
from serving.nodes.reservations import Reservations
from serving.nodes.session_registry import SessionRegistry
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER
from serving.policy.slots.scheduler import Scheduler

_REPORT_INTERVAL_S = 0.25
"""A node whose sessions stay the same tells how far it is this often at most."""

_start_layer, _arrived_s = attrgetter("start_layer"), attrgetter("arrived_s")


class Worker:
    def __init__(
        self,
        name: str,
        policy: Policy,
        tiers: TierNodes | None = None,
        watchers: Sequence[str] = (),
        capacity_tokens: float = INF,
        session_lease_s: float = 30.0,
        estimator: Estimator = ZERO_ESTIMATOR,
        scheduler: Scheduler | None = None,
        ids: IdGenerator | None = None,
    ) -> None:
        self.name, self.policy, self.watchers = name, policy, watchers
        self.session_lease_s, self.estimator, self.scheduler = session_lease_s, estimator, scheduler or policy.scheduler
        self.ids = ids or IdGenerator()
        self.monitor = NodeMonitor() if policy.monitors_link else None
        own = policy.kv_cache.capacity_tokens
        capacity = capacity_tokens if own is None else min(own, capacity_tokens)
        self.kv_accounting = KVAccounting(capacity, policy.kv_cache.keeps_prefixes, policy.kv_cache.block_tokens)
        self.node_selector = NodeSelector(tiers or {}, policy.dispatch, name, policy.kv_cache.block_tokens)
        self.queue: dict[str, list[QueuedRequest]] = {}
        """Session -> its parts in order."""
        self.session_tokens: dict[str, tuple[int, ...]] = {}
        """Without cache reuse: the tokens to compute a session from."""
        self.retained_requests: dict[tuple[str, int, int], Request] = {}
        """Questions whose tokens are kept here for the head hop, so that they never travel; by (session, round, end).
        """
        self.session_registry = SessionRegistry()
        self.reservations = Reservations(estimator)
        self.last_report_s = -INF
        self.forwarded: dict[tuple[str, int], tuple[str, Request]] = {}
        """(session, hop) -> the last hand-on, to repair when its receiver is lost."""
        self.undeliverable: dict[str, Request] = {}
        """Session -> what waits until somebody of the next tier lives: its device, if told, would only ask again."""
        self.quarantined: set[str] = set()
        """Sessions whose last batch failed: they run alone, so that a bad one spoils no other's."""
        self.running: list[tuple[QueuedRequest, SequenceSlice]] = []
        self.batch_started_s = 0.0
        self.job = self.timer = 0
        self.decision_pending = False

    def handle(self, event: Event, now: float) -> Commands:
        if isinstance(event, MessageReceived):
            message = event.message
            return (
                self._on_request(message, now)
                if isinstance(message, Request)
                else self._on_control_message(message, now)
            )
        match event:
            case TimerFired():
                if event.timer == self.timer and not self.running:
                    self.decision_pending = False
                    return self._form_batch(now) if self.queue else []
                return self._expire_lease(event.timer, now) if event.timer in self.session_registry.leases else []
            case WorkFinished():
                if event.job == self.job and isinstance(event.outcome, tuple):
                    return self._finish_batch(event.outcome, now)
            case WorkFailed():
                return self._fail_batch(now) if event.job == self.job else []
            case PeerLost():
                return self._on_peer_lost(event.peer, now)
            case PeerRestored():
                return self._on_peer_restored(event.peer, now)
        return []

    # In.

    def _on_control_message(self, message: Message, now: float) -> Commands:
        match message:
            case Release():
                return self._release_session(message.session, now)
            case LoadReport():
                self.node_selector.load_reports[message.node] = message
        return []

    def _on_request(self, m: Request, now: float) -> Commands:
        standing = self.session_registry.register(m, now)
        if standing == "open":
            return self._enqueue(m, now)
        return [self._released_miss(m)] if standing == "over" else []

    def _released_miss(self, m: Request) -> SendMessage:
        """Late, and nobody awaits an answer; or the session does go on, in rounds newer than what this Miss names."""
        session = m.slice.session
        return SendMessage(
            m.reply_to, CacheMiss(session, self.session_registry.newest_attempt[session], self.name), HEADER_NBYTES
        )

    def _enqueue(self, m: Request, now: float) -> Commands:
        if self.monitor:
            self.monitor.record_request(m, now)
        session, rounds = m.slice.session, self.session_registry.newest_attempt
        newest = rounds.get(session, -1)
        if m.attempt < newest:
            return []
        if m.attempt > newest:
            rounds[session] = m.attempt
            self.queue.pop(session, None)
        span = m.hops[m.hop_index].span
        whole = (
            self._restore_retained(m)
            if m.slice.rule and span.lm_head and m.hop_index and self._ends_at_requester(m)
            else m
        )
        rows = self._slice_to_run(whole.slice, span) if whole else None
        if rows is None or whole is None:
            return [self._cache_miss(m)]
        need = self.kv_accounting.round_up_to_blocks(rows.start + rows.num_tokens)
        if (
            self.kv_accounting.keep_caches and need > self.kv_accounting.capacity_tokens
        ):  # in the queue it would stop the others
            raise RuntimeError(
                f"{session} needs {need} cached tokens, the budget is {self.kv_accounting.capacity_tokens}"
            )
        if not self.kv_accounting.keep_caches and span.embedding and not rows.rule:
            return []  # a part of a prompt: its text is stored, and computed with the question
        item, parts = (
            QueuedRequest(
                whole, rows, span, now, rows.num_tokens, session_arrived_s=self.session_registry.first_seen_s[session]
            ),
            self.queue.get(session),
        )
        if parts:
            parts.append(item)
        else:
            self.queue[session] = [item]
        out = self._report_load(now) if self.watchers and self.reservations.reserve(whole, span) else []
        return out if self.running or self.decision_pending else out + self._schedule_decision(now)

    def _slice_to_run(self, rows: SequenceSlice, span: Span) -> SequenceSlice | None:
        """What a request comes to here: without cache reuse the whole text."""
        return rows if self.kv_accounting.keep_caches or not span.embedding else self._full_slice(rows)

    def _full_slice(self, rows: SequenceSlice) -> SequenceSlice | None:
        text = self.session_tokens.get(rows.session, ())
        if len(text) < rows.start:
            return None
        text = self.session_tokens[rows.session] = text[: rows.start] + rows.tokens
        return replace(rows, start=0, num_tokens=len(text), tokens=text)

    def _ends_at_requester(self, m: Request) -> bool:
        """Does the route end here, on the device that asked? Then no token of the question leaves it."""
        return m.reply_to == self.name and m.hops[-1].node == DEVICE_TIER

    def _restore_retained(self, m: Request) -> Request | None:
        """A question that came back, with what was kept of it here; None where that is not known any more."""
        rows = m.slice
        kept = self.retained_requests.pop((rows.session, m.attempt, rows.start + rows.num_tokens), None)
        if kept is None:
            return None
        return replace(
            m,
            slice=replace(rows, tokens=kept.slice.tokens, draft_probs=kept.slice.draft_probs),
            stop_tokens=kept.stop_tokens,
        )

    def _schedule_decision(self, now: float) -> Commands:
        if self.running or self.decision_pending or not self.queue:
            return []
        self.decision_pending, self.timer = True, self.ids.next()
        return [SetTimer(now, self.timer)]

    # Decide.

    def _form_batch(self, now: float) -> Commands:
        out: Commands = []
        heads = self._ready_requests(out)
        if not heads:
            return out
        if self.quarantined:
            heads = [i for i in heads if i.slice.session in self.quarantined][:1] or heads
        span = max([i.span for i in heads], key=_start_layer)
        heads = [i for i in heads if i.span is span or i.span == span]
        picked = self.scheduler.pick(heads, now, MemoryBudget(self.kv_accounting, self.queue), self.estimator)
        if not isinstance(picked, list):
            self.timer = self.ids.next()
            return [*out, SetTimer(picked, self.timer)]
        picked, evicted = admit(picked, self.kv_accounting, self.queue)
        out += [DropCache(*key) for key in evicted]
        if not picked:
            raise RuntimeError(f"{self.name}: {self.policy.scheduler} left {len(heads)} requests and a free chip")
        return [*out, self._start_batch(picked, span, now)]

    def _ready_requests(self, out: Commands) -> list[QueuedRequest]:
        """The first item of every session whose cache is what it needs, oldest first; the others miss."""
        heads: list[QueuedRequest] = []
        missed: list[QueuedRequest] = []
        for parts in self.queue.values():
            (heads if has_required_cache(parts[0], self.kv_accounting) else missed).append(parts[0])
        for item in missed:
            del self.queue[item.slice.session]
            out.append(self._cache_miss(item.request))
        heads.sort(key=_arrived_s)
        return heads

    def _start_batch(self, picked: list[tuple[QueuedRequest, int]], span: Span, now: float) -> StartWork:
        self.running = [(item, self._take_slice(item, n)) for item, n in picked]
        self.batch_started_s = now
        self.job = self.ids.next()
        requests = [item.request for item, _ in picked]
        probes = next((m.requested_outputs for m in requests if m.requested_outputs), ())
        out = tuple([_hidden_export(item.request, rows) for item, rows in self.running])
        return StartWork(self.job, ForwardWork(span, tuple([rows for _, rows in self.running]), out, probes))

    def _take_slice(self, queued: QueuedRequest, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` rows of an item, which leaves the queue with its last."""
        rows = (
            queued.slice
            if num_tokens == queued.slice.num_tokens
            else queued.slice.narrow(queued.done_tokens, queued.done_tokens + num_tokens)
        )
        queued.advance(num_tokens)
        if not queued.remaining_tokens:
            self._dequeue(rows.session)
        self.kv_accounting.start_forward(rows, queued.span)
        return rows

    def _dequeue(self, session: str) -> None:
        parts = self.queue[session]
        if len(parts) == 1:
            del self.queue[session]
        else:
            del parts[0]

    # Out.

    def _finish_batch(self, results: tuple[SliceOutcome, ...], now: float) -> Commands:
        out: Commands = []
        batch, self.running = self.running, []
        if self.monitor and (span := batch[0][0].span).start_layer < span.end_layer:
            self.monitor.record_batch(sum([rows.num_tokens for _, rows in batch]), now - self.batch_started_s)
        if self.quarantined:
            self.quarantined.difference_update([rows.session for _, rows in batch])
        newest = self.session_registry.newest_attempt
        for (item, rows), result in zip(batch, results, strict=True):
            m = item.request
            if m.attempt < newest.get(rows.session, INF):  # released or superseded while it ran
                out += self._drop_if_released(rows.session)
                continue
            verdict = result.verdict
            rejected = rows.num_drafts - verdict.accepted if verdict and verdict.kept_tree_nodes is None else 0
            self.kv_accounting.finish_forward(rows, item.span, rejected)
            self.reservations.complete(rows.session, rows.num_tokens)
            if m.hop_index + 1 < len(m.hops):
                if result.hidden_states:
                    out += self._forward(item, rows, result.hidden_states, now)
            elif verdict:
                out += self._reply(item, rows, verdict, now)
        if self.watchers and now >= self.last_report_s + _REPORT_INTERVAL_S:
            out += self._report_load(now)
        return out + self._schedule_decision(now)

    def _report_load(self, now: float) -> Commands:
        """What those who choose among this node and its peers go by, once it knows how fast it is."""
        if not self.reservations.has_timing:
            return []
        self.last_report_s = now
        backlog = self.reservations.load_report(self.name, self.kv_accounting)
        return [SendMessage(watcher, backlog, HEADER_NBYTES) for watcher in self.watchers]

    def _forward(
        self, queued: QueuedRequest, seq: SequenceSlice, hidden_states: TensorRef | None, now: float
    ) -> Commands:
        m, here_s = queued.request, now - queued.arrived_s
        hop = m.hop_index + 1
        path = self._bind_hop(m, seq, hop)
        to, ends, tokens, odds = (
            path[hop],
            m.stop_tokens,
            seq.tokens[:0],
            seq.draft_probs,
        )  # hidden states travel instead
        if seq.num_drafts:  # drafts go where the head is
            tokens = seq.tokens[-seq.num_drafts :]
        if self._ends_at_requester(m):  # neither drafts nor what they were drawn from leave
            if seq.rule:
                kept = replace(m, slice=replace(seq, tokens=tokens))
                self.retained_requests[seq.session, m.attempt, seq.start + seq.num_tokens] = kept
            ends, tokens, odds = (), (), ()
        seq = replace(seq, tokens=tokens, hidden_states=hidden_states, draft_probs=odds, hidden_offset=0)
        m = replace(
            m, slice=seq, hop_index=hop, path=path, stop_tokens=ends, slack_s=m.slack_s - here_s, upstream_s=m.upstream_s + here_s,
            **self._monitoring_fields(m, now),
        )  # fmt: skip
        return self._send_request(to, m)

    def _send_request(self, to: str, m: Request) -> Commands:
        if to not in self.node_selector.lost_nodes:
            self.forwarded[m.slice.session, m.hop_index] = to, m
            return [SendMessage(to, m, HEADER_NBYTES + m.slice.nbytes)]
        if self.node_selector.reachable(m.hops[m.hop_index].node):  # asked anew it goes to another
            return [self._cache_miss(m)]
        self.undeliverable[m.slice.session] = m
        return []

    def _monitoring_fields(self, m: Request, now: float) -> dict[str, Any]:
        """What a monitored request says of its way so far."""
        if not self.monitor:
            return {}
        return {"sent_s": now, "path_stats": None if m.reply_to == self.name else self.monitor.path_stats(m)}

    def _bind_hop(self, m: Request, seq: SequenceSlice, hop_index: int) -> tuple[str, ...]:
        """The path with a node for a hop: the one that has had this session, else a fresh choice; where it is lost and
        everything is sent again, another.
        """
        tier, last = m.hops[hop_index].node, self.forwarded.get((seq.session, hop_index))
        node = m.path[hop_index] if len(m.path) > hop_index else ""
        if last and (not node or last[1].attempt == m.attempt):  # an earlier part of this attempt went there
            node = last[0]
        if not node or (node in self.node_selector.lost_nodes and not seq.start):
            node = m.reply_to if tier == DEVICE_TIER else self.node_selector.choose(tier, seq, m.budget)
        return (*m.path[:hop_index], node, *m.path[hop_index + 1 :])

    def _reply(self, queued: QueuedRequest, seq: SequenceSlice, verdict: Verdict, now: float) -> Commands:
        m = queued.request
        agreed = seq.start + seq.num_tokens - seq.num_drafts
        left = 0 if verdict.next_token in m.stop_tokens else m.budget - 1
        condition = self.monitor.path_stats(m) if self.monitor and m.reply_to != self.name else None
        reply = Reply(
            seq.session, m.attempt, agreed, verdict, m.path, left, m.upstream_s + now - queued.arrived_s, condition
        )
        out: Commands = [SendMessage(m.reply_to, reply, REPLY_NBYTES)]
        if left:
            out += self._loop_to_first_hop(m, seq, agreed + verdict.accepted, verdict, left, now)
        return out

    def _loop_to_first_hop(
        self, m: Request, seq: SequenceSlice, start: int, verdict: Verdict, remaining_budget: int, now: float
    ) -> Commands:
        """The route goes on writing: the new token starts over at the first hop."""
        one = SequenceSlice(seq.session, start, 1, (verdict.next_token,), 0, seq.rule, seq.sampling)
        slack_s = 1 / m.slo_tokens_per_s if m.slo_tokens_per_s else INF
        m = replace(
            m, slice=one, hop_index=0, budget=remaining_budget, slack_s=slack_s, expected_tokens=1.0, upstream_s=0.0
        )
        first = m.path[0]
        if first == self.name:
            return self._enqueue(m, now)
        return self._send_request(first, m)

    def _cache_miss(self, m: Request) -> SendMessage:
        self.reservations.release(m.slice.session)
        return SendMessage(m.reply_to, CacheMiss(m.slice.session, m.attempt, self.name), HEADER_NBYTES)

    # Gone.

    def _on_peer_lost(self, peer: str, now: float) -> Commands:
        self.node_selector.mark_lost(peer)
        gone = [key for key, (to, _) in self.forwarded.items() if to == peer]
        missed = [self._cache_miss(self.forwarded.pop(key)[1]) for key in gone]
        return [
            *missed,
            *self._start_lease(peer, now),
            *self._close_stranded(peer),
            *(self._report_load(now) if self.watchers else ()),
        ]

    def _on_peer_restored(self, peer: str, now: float) -> Commands:
        self.node_selector.mark_restored(peer)
        unsent, self.undeliverable = self.undeliverable, {}
        missed = [self._cache_miss(m) for m in unsent.values()]
        return [*missed, *(self._report_load(now) if peer in self.watchers else ())]

    def _close_stranded(self, peer: str) -> Commands:
        """What came here by way of a peer that is lost is asked anew, and may come another way: nobody counts on it any
        more, and its caches go, but for what is under way.
        """
        found = self.session_registry.stranded_sessions(peer, self.name)
        busy = self.queue.keys() | {rows.session for _, rows in self.running}
        for session in found:
            self.reservations.release(session)
        idle = [session for session in found if session not in busy]
        self.session_registry.reset(idle)
        return [command for session in idle for command in self._forget_session(session)]

    def _start_lease(self, peer: str, now: float) -> Commands:
        timer = self.session_registry.start_lease(peer, now)
        return [] if timer is None else [SetTimer(now + self.session_lease_s, timer)]

    def _expire_lease(self, timer: int, now: float) -> Commands:
        out = [
            command
            for session in self.session_registry.expire_lease(timer)
            for command in self._forget_session(session)
        ]
        return out + self._report_load(now) if self.watchers else out

    def _fail_batch(self, now: float) -> Commands:
        """The chip broke down in the middle of a batch: all that was in it begins anew, each on its own."""
        batch, self.running = self.running, []
        out: Commands = []
        for item, rows in batch:
            out += [DropCache(*key) for key in self.kv_accounting.evict_session(rows.session)]
            if item.request.attempt >= self.session_registry.newest_attempt.get(rows.session, INF):
                self.queue.pop(rows.session, None)
                self.quarantined.add(rows.session)
                out.append(self._cache_miss(item.request))
        return out + self._schedule_decision(now)

    def _release_session(self, session: str, now: float) -> Commands:
        """Whoever it was handed on to hears it from here: the device may not reach that node itself."""
        sent = [each for (name, _), each in self.forwarded.items() if name == session]
        onward = (
            {to for to, m in sent if to not in (m.reply_to, self.name)}
            if self.session_registry.is_open(session)
            else ()
        )
        self.session_registry.release(session)
        told = self._report_load(now) if self.reservations.release(session) else []
        onwards = [SendMessage(node, Release(session), HEADER_NBYTES) for node in sorted(onward)]
        return [*self._forget_session(session), *onwards, *told]

    def _forget_session(self, session: str) -> Commands:
        self.session_registry.owners.pop(session, None)
        self.session_registry.upstream_paths.pop(session, None)
        self.reservations.release(session)
        self.queue.pop(session, None)
        self.quarantined.discard(session)
        self.session_tokens.pop(session, None)
        self.undeliverable.pop(session, None)
        for key in [k for k in self.retained_requests if k[0] == session]:
            del self.retained_requests[key]
        for hop in [k for k in self.forwarded if k[0] == session]:
            del self.forwarded[hop]
        if any(rows.session == session for _, rows in self.running):
            return []  # its cache is in use: dropped when the batch is done
        return [DropCache(*key) for key in self.kv_accounting.evict_session(session)]

    def _drop_if_released(self, session: str) -> Commands:
        return (
            []
            if self.session_registry.is_open(session)
            else [DropCache(*key) for key in self.kv_accounting.evict_session(session)]
        )


def _hidden_export(request: Request, seq: SequenceSlice) -> str:
    """Which hidden states are exported: of a part of a prompt none where all that follows is the head, which is not
    asked, and it wants the last only.
    """
    hop, last = request.hops[request.hop_index], request.hop_index + 1 == len(request.hops)
    if last:
        return hop.hidden_export
    after = request.hops[request.hop_index + 1].span
    return (
        ""
        if not seq.rule and after.start_layer == after.end_layer and hop.hidden_export == "last"
        else hop.hidden_export
    )
