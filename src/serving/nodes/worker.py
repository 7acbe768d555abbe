"""A worker: a queue, a scheduler and KV caches. It runs its hop for batches of sessions and forwards them to the next.

1. Batches are formed on a timer, never inside an arrival, so that the scheduler sees all arrivals of one instant.
2. A batch has one request per session and one span: the deepest that waits, so that started passes finish first.
3. A request of an older attempt than the newest seen is dropped. A request that needs a longer cache than there is
   gets a `CacheMiss`.
4. If the chip is idle and a request waits, something runs: `admit` evicts caches to make room.
5. An error of a scheduler or of an answer is raised by a timer of its own, after the sessions that it affects have
   missed: they start again where the driver goes on. On a device it is raised at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import attrgetter

from serving.core.kv_accounting import (
    CacheKey,
    KVAccounting,
    MemoryBudget,
    admit,
    find_prefix,
    has_required_cache,
    take_prefixes,
)
from serving.core.link_monitor import NodeMonitor
from serving.core.queued_request import QueuedRequest
from serving.core.stop_strings import TokenText, advance, no_token_text
from serving.hardware.estimator import ZERO_ESTIMATOR, Estimator
from serving.messages import (
    HEADER_NBYTES,
    INF,
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
    TokenIds,
    Verdict,
    WorkFailed,
    WorkFinished,
    reply_nbytes,
)
from serving.nodes.hop_path import NodeSelector, TierNodes
from serving.nodes.reservations import Reservations
from serving.nodes.session_registry import SessionRegistry
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER
from serving.policy.slots.scheduler import Scheduler

_RELEASED = 2**60
"""More than any attempt: the session was released."""
_REPORT_INTERVAL_S = 0.25
"""Least time between two load reports while no session starts or ends."""

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
        ids: Iterator[int] | None = None,
        token_text: TokenText = no_token_text,
        idle_reports: Mapping[str, LoadReport] | None = None,
    ) -> None:
        self.name, self.policy, self.watchers, self.token_text = name, policy, watchers, token_text
        self.session_lease_s, self.estimator, self.scheduler = session_lease_s, estimator, scheduler or policy.scheduler
        # an object: the compiled core would refuse another type by itself, without the scheduler's name
        self.pick_batch: Callable[..., object] = self.scheduler.pick
        self.ids = ids or count(1)
        self.monitor = NodeMonitor() if policy.monitors_link else None
        own = policy.kv_cache.capacity_tokens
        capacity = capacity_tokens if own is None else min(own, capacity_tokens)
        cache = policy.kv_cache
        self.kv_accounting = KVAccounting(capacity, cache.keeps_prefixes, cache.block_tokens, cache.idle_sessions)
        self.node_selector = NodeSelector(tiers or {}, policy.dispatch, name, cache.block_tokens, idle_reports)
        self.queue: dict[str, list[QueuedRequest]] = {}
        """Session -> the chunks of its request, in order."""
        self.session_tokens: dict[str, tuple[TokenIds, int]] = {}
        """Session -> its tokens and how many of them are drafts, where each request is computed anew."""
        self.retained_requests: dict[tuple[str, int, int], Request] = {}
        """(session, attempt, end) -> a request whose drafts stay on this device until its last hop verifies them."""
        self.streams_download = policy.streams_download
        self.withheld: dict[str, list[Request]] = {}
        """Session -> parts of its prompt that are sent to the device with the last one."""
        self.session_registry = SessionRegistry()
        self.reservations = Reservations(estimator)
        self.last_report_s = -INF
        self.forwarded: dict[tuple[str, int], tuple[str, Request]] = {}
        """(session, hop) -> the receiver of the last request forwarded, which misses if the receiver is lost."""
        self.undeliverable: dict[str, Request] = {}
        """Session -> a request that waits until a node of its next tier is reachable."""
        self.quarantined: set[str] = set()
        """Sessions whose last batch failed. Each runs in a batch of its own, so that a bad one fails no other."""
        self.pending_errors: dict[int, Exception] = {}
        """Timer -> an error that it raises."""
        self.running: list[tuple[QueuedRequest, SequenceSlice]] = []
        self.batch_started_s = 0.0
        self.job = self.timer = 0
        self.decision_pending = False
        """True if a batch is due: at this instant, by the timer, or once it is not held any more."""
        self.held = False
        """True if no batch is formed, because drafts run on this chip. See `resume`."""

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
                    self.timer, self.decision_pending = 0, self.held
                    return self._form_batch(now) if self.queue and not self.held else []
                if event.timer in self.pending_errors:
                    raise self.pending_errors.pop(event.timer)
                return self._expire_lease(event.timer, now) if event.timer in self.session_registry.leases else []
            case WorkFinished():
                if event.job == self.job and isinstance(event.outcome, tuple):
                    return self._finish_batch(event.outcome, now)
            case WorkFailed():
                return self._fail_batch(now) if event.job == self.job else []
            case PeerLost():
                return self._on_peer_lost(event, now)
            case PeerRestored():
                return self._on_peer_restored(event, now)
        return []

    @property
    def is_idle(self) -> bool:
        """True if nothing runs or waits."""
        return not (self.queue or self.running)

    def awaits(self, timer: int) -> bool:
        """True if this worker set the timer and still uses it."""
        return timer == self.timer or timer in self.pending_errors or timer in self.session_registry.leases

    # Requests that arrive.

    def _on_control_message(self, message: Message, now: float) -> Commands:
        match message:
            case Release():
                return self._release_session(message.session, now)
            case LoadReport():
                self.node_selector.load_reports[message.node] = message
        return []

    def _on_request(self, m: Request, now: float) -> Commands:
        status = self.session_registry.register(m, now)
        if status == "open":
            out = self._enqueue(m, now)
            # An earlier node forwarded it for a lost owner: a release of the session may never come.
            return out + self._start_lease(m.reply_to, now) if m.reply_to in self.node_selector.lost_nodes else out
        return [self._released_miss(m)] if status == "released" else []

    def _released_miss(self, m: Request) -> SendMessage:
        """Names the newest attempt: a device whose session is still running continues above it, others ignore it."""
        session = m.slice.session
        return SendMessage(
            m.reply_to, CacheMiss(session, self.session_registry.newest_attempt[session], self.name), HEADER_NBYTES
        )

    def _enqueue(self, m: Request, now: float) -> Commands:
        if self.monitor:
            self.monitor.record_request(m, now)
        session, newest_attempt = m.slice.session, self.session_registry.newest_attempt
        newest = newest_attempt.get(session, -1)
        if m.attempt < newest:
            return []
        if m.attempt > newest:
            newest_attempt[session] = m.attempt
            self.queue.pop(session, None)
        span = m.hops[m.hop_index].span
        if m.slice.rule and span.lm_head and m.hop_index and self._ends_at_requester(m):
            restored = self._restore_retained(m)
            if restored is None:
                return [self._cache_miss(m)]
            m = restored
        seq = self._slice_to_run(m.slice, span)
        if seq is None:
            return [self._cache_miss(m)]
        if (too_long := self._capacity_error(seq)) is not None:
            return self._fail_requests([m], too_long, now)
        if not self.kv_accounting.keep_caches and span.embedding and not seq.rule:
            return []  # a chunk of a prompt: its tokens are stored, and computed with the request that verifies
        queued = QueuedRequest(
            m, seq, span, now, seq.num_tokens, session_arrived_s=self.session_registry.first_seen_s[session]
        )
        self.queue.setdefault(session, []).append(queued)
        out = self._report_load(now) if self.watchers and self.reservations.reserve(m, span) else []
        return out if self.running or self.decision_pending else out + self._schedule_decision(now)

    def _slice_to_run(self, seq: SequenceSlice, span: Span) -> SequenceSlice | None:
        """The slice to compute; where caches are not kept, the whole text. None: an earlier part of it is missing."""
        if self.kv_accounting.keep_caches or not span.embedding:
            return seq
        tokens, num_drafts = self.session_tokens.get(seq.session, ((), 0))
        if seq.kept_tree_nodes is not None:
            tokens = _with_kept(tokens, num_drafts, seq.kept_tree_nodes, seq.start)
        if len(tokens) < seq.start:
            return None
        tokens = tokens[: seq.start] + seq.tokens
        self.session_tokens[seq.session] = tokens, seq.num_drafts
        return seq.with_prefix(tokens)

    def _capacity_error(self, seq: SequenceSlice) -> RuntimeError | None:
        """For a sequence that no eviction makes room for: it would block the queue for ever."""
        need = self.kv_accounting.round_up_to_blocks(seq.start + seq.num_tokens)
        if not self.kv_accounting.keep_caches or need <= self.kv_accounting.capacity_tokens:
            return None
        return RuntimeError(
            f"{seq.session} needs {need} cached tokens, the budget is {self.kv_accounting.capacity_tokens}"
        )

    def _ends_at_requester(self, m: Request) -> bool:
        """True if this worker is the requester's own and the last hop runs on it: drafts need not leave the device."""
        return m.reply_to == self.name and m.hops[-1].node == DEVICE_TIER

    def _restore_retained(self, m: Request) -> Request | None:
        """The request with the drafts that were retained for its last hop; None if they are not known any more."""
        seq = m.slice
        kept = self.retained_requests.pop((seq.session, m.attempt, seq.start + seq.num_tokens), None)
        if kept is None:
            return None
        return replace(
            m,
            slice=replace(seq, tokens=kept.slice.tokens, draft_probs=kept.slice.draft_probs),
            stop_tokens=kept.stop_tokens,
            stop_text=kept.stop_text,
        )

    # Batches.

    def _schedule_decision(self, now: float) -> Commands:
        if self.running or self.decision_pending or not self.queue:
            return []
        self.decision_pending, self.timer = True, 0
        return [] if self.held else self._set_timer(now)

    def _set_timer(self, due_s: float) -> Commands:
        self.timer = next(self.ids)
        return [SetTimer(due_s, self.timer)]

    def resume(self, now: float) -> Commands:
        """Forms batches again, and decides on one if that is due."""
        self.held = False
        return self._set_timer(now) if self.decision_pending and not self.timer else []

    @property
    def forms_batch_now(self) -> bool:
        """True if a batch is formed at this instant, when all its events are handled."""
        return self.decision_pending and not self.held

    def _form_batch(self, now: float) -> Commands:
        out: Commands = []
        ready = self._ready_requests(out)
        if not ready:
            return out
        if self.quarantined:
            ready = [each for each in ready if each.slice.session in self.quarantined][:1] or ready
        span = max([each.span for each in ready], key=_start_layer)
        ready = [each for each in ready if each.span is span or each.span == span]
        evicted: list[CacheKey] = []
        try:
            decided = self._decide(ready, span, evicted, now)
        except Exception as error:
            self.running = []
            decided = self._fail_requests([each.request for each in ready], error, now)
        return [*out, *[DropCache(*key) for key in evicted], *decided]

    def _decide(self, ready: list[QueuedRequest], span: Span, evicted: list[CacheKey], now: float) -> Commands:
        """Starts a batch, or waits. Appends to `evicted` the caches that make room, also if it raises."""
        picked = self.pick_batch(ready, now, MemoryBudget(self.kv_accounting, self.queue), self.estimator)
        if not isinstance(picked, list):
            if not isinstance(picked, float | int) or not picked > now:
                raise ValueError(
                    f"{self.name}: {self.scheduler} returned {picked!r} at {now:.6f} s. Scheduler.pick returns "
                    "requests, or a later time until which to wait."
                )
            return self._set_timer(picked)
        if not picked:
            raise ValueError(
                f"{self.name}: {self.scheduler} picked an empty batch while {len(ready)} requests wait and the chip is "
                "idle. Scheduler.pick returns at least one request, or the time until which to wait."
            )
        picked = admit(picked, self.kv_accounting, self.queue, evicted)
        return [self._start_batch(picked, span, now)]

    def _ready_requests(self, out: Commands) -> list[QueuedRequest]:
        """The first request of each session, oldest first. Sessions whose cache is too short get a `CacheMiss`."""
        ready: list[QueuedRequest] = []
        missed: list[QueuedRequest] = []
        for chunks in self.queue.values():
            if self.kv_accounting.prefixes:
                find_prefix(chunks[0], self.kv_accounting.prefixes)
            (ready if has_required_cache(chunks[0], self.kv_accounting) else missed).append(chunks[0])
        for queued in missed:
            del self.queue[queued.slice.session]
            out.append(self._cache_miss(queued.request))
        ready.sort(key=_arrived_s)
        return ready

    def _start_batch(self, picked: list[tuple[QueuedRequest, int]], span: Span, now: float) -> StartWork:
        prefixes: tuple[str, ...] = ()
        if self.kv_accounting.prefixes:
            picked, prefixes = take_prefixes(picked, self.kv_accounting)
            for (queued, _), source in zip(picked, prefixes, strict=False):
                if source:  # what is copied is not waited for
                    self.reservations.complete(queued.slice.session, queued.done_tokens)
        self.running = [(queued, self._take_slice(queued, num_tokens)) for queued, num_tokens in picked]
        self.batch_started_s = now
        self.job = next(self.ids)
        requests = [queued.request for queued, _ in picked]
        requested_outputs = next((m.requested_outputs for m in requests if m.requested_outputs), ())
        exports = tuple([_hidden_export(queued.request, seq) for queued, seq in self.running])
        return StartWork(
            self.job, ForwardWork(span, tuple([seq for _, seq in self.running]), exports, requested_outputs, prefixes)
        )

    def _take_slice(self, queued: QueuedRequest, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` tokens of a request, which leaves the queue with its last ones."""
        seq = queued.slice
        if num_tokens < seq.num_tokens:
            seq = seq.narrow(queued.done_tokens, queued.done_tokens + num_tokens)
        if seq.kept_tree_nodes is not None and not self.kv_accounting.ends_with_tree(seq, queued.span):
            seq = replace(seq, kept_tree_nodes=None)  # the request has come twice
        queued.advance(num_tokens)
        if not queued.remaining_tokens:
            self._dequeue(seq.session)
        self.kv_accounting.start_forward(seq, queued.span)
        return seq

    def _dequeue(self, session: str) -> None:
        chunks = self.queue[session]
        if len(chunks) == 1:
            del self.queue[session]
        else:
            del chunks[0]

    def _finish_batch(self, outcomes: tuple[SliceOutcome, ...], now: float) -> Commands:
        out: Commands = []
        batch, self.running = self.running, []
        if self.monitor and (span := batch[0][0].span).start_layer < span.end_layer:
            self.monitor.record_batch(sum([seq.num_tokens for _, seq in batch]), now - self.batch_started_s)
        if self.quarantined:
            self.quarantined.difference_update([seq.session for _, seq in batch])
        newest = self.session_registry.newest_attempt
        for (queued, seq), outcome in zip(batch, outcomes, strict=True):
            m = queued.request
            if m.attempt < newest.get(seq.session, _RELEASED):  # released or superseded while it ran
                out += self._end_if_released(seq.session)
                continue
            try:
                out += self._finish_slice(queued, seq, outcome, now)
            except Exception as error:
                out += self._fail_requests([m], error, now)
        if self.watchers and now >= self.last_report_s + _REPORT_INTERVAL_S:
            out += self._report_load(now)
        return out + self._schedule_decision(now)

    def _finish_slice(self, queued: QueuedRequest, seq: SequenceSlice, outcome: SliceOutcome, now: float) -> Commands:
        m, verdict = queued.request, outcome.verdict
        rejected = seq.num_drafts - verdict.accepted if verdict and verdict.kept_tree_nodes is None else 0
        self.kv_accounting.finish_forward(seq, queued.span, rejected)
        self.reservations.complete(seq.session, seq.num_tokens)
        if m.hop_index + 1 < len(m.hops):
            return self._forward(queued, seq, outcome.hidden_states, now) if outcome.hidden_states else []
        return self._reply(queued, seq, verdict, now) if verdict else []

    def _fail_requests(self, requests: Sequence[Request], error: Exception, now: float) -> Commands:
        """Each session misses, and then runs on its own; if one did not yet, a timer raises the error.

        A device's own worker raises the error at once: its requester would try again within the same event.
        """
        if any(m.reply_to == self.name for m in requests):
            raise error
        out: Commands = []
        if not self.quarantined.issuperset(m.slice.session for m in requests):
            timer = next(self.ids)
            self.pending_errors[timer] = error
            out = [SetTimer(now, timer)]
        for m in requests:
            self.queue.pop(m.slice.session, None)
            self.quarantined.add(m.slice.session)
            out.append(self._cache_miss(m))
        return out + self._schedule_decision(now)

    def _fail_batch(self, now: float) -> Commands:
        """The chip failed during a batch: drop its sessions' caches. Each session misses, and then runs on its own."""
        batch, self.running = self.running, []
        out: Commands = []
        for queued, seq in batch:
            out += [DropCache(*key) for key in self.kv_accounting.evict_session(seq.session)]
            if queued.request.attempt >= self.session_registry.newest_attempt.get(seq.session, _RELEASED):
                self.queue.pop(seq.session, None)
                self.quarantined.add(seq.session)
                out.append(self._cache_miss(queued.request))
        return out + self._schedule_decision(now)

    # Messages that leave.

    def _report_load(self, now: float) -> Commands:
        """Tells the watchers how loaded this node is, once it knows how long a pass takes."""
        if not self.reservations.has_timing:
            return []
        self.last_report_s = now
        report = self.reservations.load_report(self.name, self.kv_accounting)
        return [SendMessage(watcher, report, HEADER_NBYTES) for watcher in self.watchers]

    def _forward(self, queued: QueuedRequest, seq: SequenceSlice, hidden_states: TensorRef, now: float) -> Commands:
        """Sends the hidden states to the next hop, with the drafts that the last hop verifies."""
        m, hop_index, here_s = queued.request, queued.request.hop_index + 1, now - queued.arrived_s
        path = self._bind_hop(m, seq, hop_index)
        tokens = seq.tokens[-seq.num_drafts :] if seq.num_drafts else ()
        draft_probs, stop_tokens, stop_text = seq.draft_probs, m.stop_tokens, m.stop_text
        if self._ends_at_requester(m):  # no token leaves the device
            if seq.rule:
                kept = replace(m, slice=replace(seq, tokens=tokens))
                self.retained_requests[seq.session, m.attempt, seq.start + seq.num_tokens] = kept
            tokens, draft_probs, stop_tokens, stop_text = (), (), (), None
        sent_s, path_stats = m.sent_s, m.path_stats
        if self.monitor:
            sent_s, path_stats = now, None if m.reply_to == self.name else self.monitor.path_stats(m)
        # Field by field, here and below: `replace` looks every field up, a sixth of the time of a tiered simulation.
        one = SequenceSlice(
            seq.session, seq.start, seq.num_tokens, tokens, seq.num_drafts, seq.rule, seq.sampling, seq.parents,
            seq.kept_tree_nodes, hidden_states, draft_probs, 0,
        )  # fmt: skip
        forwarded = Request(
            m.attempt, one, m.hops, hop_index, path, m.reply_to, m.budget, m.slack_s - here_s, m.expected_tokens,
            m.requested_outputs, stop_tokens, m.slo_tokens_per_s, m.upstream_s + here_s, sent_s, path_stats, stop_text,
        )  # fmt: skip
        if self.streams_download or m.hops[hop_index].node != DEVICE_TIER:
            return self._send_request(path[hop_index], forwarded)
        return self._send_with_withheld(path[hop_index], forwarded)

    def _send_with_withheld(self, device: str, m: Request) -> Commands:
        """Withholds a part of a prompt; sends the last one, and those of its attempt that were withheld before it."""
        session = m.slice.session
        withheld = self.withheld.pop(session, ())
        parts = [replace(each, sent_s=m.sent_s) for each in withheld if each.attempt == m.attempt]
        if not m.slice.rule:
            self.withheld[session] = [*parts, m]
            return []
        return [command for part in (*parts, m) for command in self._send_request(device, part)]

    def _send_request(self, to: str, m: Request) -> Commands:
        if to not in self.node_selector.lost_nodes:
            self.forwarded[m.slice.session, m.hop_index] = to, m
            return [SendMessage(to, m, HEADER_NBYTES + m.slice.nbytes)]
        if self.node_selector.reachable(m.hops[m.hop_index].node):  # the device's next attempt goes to another node
            return [self._cache_miss(m)]
        self.undeliverable[m.slice.session] = m
        return []

    def _bind_hop(self, m: Request, seq: SequenceSlice, hop_index: int) -> tuple[str, ...]:
        """The request's path with a node for the hop: the session's node so far, else a newly chosen one.

        If that node is lost and the whole sequence is resent, another one is chosen.
        """
        tier, last = m.hops[hop_index].node, self.forwarded.get((seq.session, hop_index))
        node = m.path[hop_index] if len(m.path) > hop_index else ""
        if last and (not node or last[1].attempt == m.attempt):  # where an earlier chunk of this attempt went
            node = last[0]
        if not node or (node in self.node_selector.lost_nodes and not seq.start):
            node = m.reply_to if tier == DEVICE_TIER else self.node_selector.choose(tier, seq, m.budget)
        return (*m.path[:hop_index], node, *m.path[hop_index + 1 :])

    def _reply(self, queued: QueuedRequest, seq: SequenceSlice, verdict: Verdict, now: float) -> Commands:
        m, committed_len = queued.request, seq.start + seq.num_tokens - seq.num_drafts
        remaining_budget = m.budget - 1
        if remaining_budget:
            written = (*seq.tokens[len(seq.tokens) - seq.num_drafts :][: verdict.accepted], verdict.next_token)
            ended = any(token in m.stop_tokens for token in written)
            if m.stop_text and not ended:
                stop_text, end = advance(m.stop_text, written, self.token_text)
                m, ended = replace(m, stop_text=stop_text), end is not None
            remaining_budget = 0 if ended else remaining_budget
        path_latency_s = m.upstream_s + now - queued.arrived_s
        stats = self.monitor.path_stats(m) if self.monitor and m.reply_to != self.name else None
        reply = Reply(seq.session, m.attempt, committed_len, verdict, m.path, remaining_budget, path_latency_s, stats)
        out: Commands = [SendMessage(m.reply_to, reply, reply_nbytes(reply))]
        if remaining_budget:
            out += self._loop_to_first_hop(m, seq, committed_len + verdict.accepted, verdict, remaining_budget, now)
        return out

    def _loop_to_first_hop(
        self, m: Request, seq: SequenceSlice, start: int, verdict: Verdict, remaining_budget: int, now: float
    ) -> Commands:
        """Continues the generation within the budget: the new token goes to the first hop, where the statistics of the
        path begin anew. It has not crossed the device's link, so it has no time of sending.
        """
        one = SequenceSlice(seq.session, start, 1, (verdict.next_token,), 0, seq.rule, seq.sampling)
        slack_s = 1 / m.slo_tokens_per_s if m.slo_tokens_per_s else INF
        m = Request(
            m.attempt, one, m.hops, 0, m.path, m.reply_to, remaining_budget, slack_s, 1.0, m.requested_outputs,
            m.stop_tokens, m.slo_tokens_per_s, 0.0, None, None, m.stop_text,
        )  # fmt: skip
        first = m.path[0]
        if first == self.name:
            return self._enqueue(m, now)
        return self._send_request(first, m)

    def _cache_miss(self, m: Request) -> SendMessage:
        self.reservations.release(m.slice.session)
        return SendMessage(m.reply_to, CacheMiss(m.slice.session, m.attempt, self.name), HEADER_NBYTES)

    # Lost peers and ended sessions.

    def _on_peer_lost(self, event: PeerLost, now: float) -> Commands:
        self.node_selector.mark_lost(event)
        peer = event.peer
        if self.monitor and event.cause == "node":
            self.monitor.uplinks.pop(peer, None)  # its clock may begin anew
        lost = [key for key, (to, _) in self.forwarded.items() if to == peer]
        missed = [self._cache_miss(self.forwarded.pop(key)[1]) for key in lost]
        return [
            *missed,
            *self._start_lease(peer, now),
            *self._close_stranded(peer),
            *(self._report_load(now) if self.watchers else ()),
        ]

    def _on_peer_restored(self, event: PeerRestored, now: float) -> Commands:
        if not self.node_selector.mark_restored(event):
            return []
        undeliverable, self.undeliverable = self.undeliverable, {}
        missed = [self._cache_miss(m) for m in undeliverable.values()]
        return [*missed, *(self._report_load(now) if event.peer in self.watchers else ())]

    def _close_stranded(self, peer: str) -> Commands:
        """A lost peer had forwarded these sessions here. Their devices will resend, perhaps by another path.

        Drops their reservations now, and ends those that are neither queued nor running.
        """
        stranded = self.session_registry.stranded_sessions(peer, self.name)
        busy = self.queue.keys() | {seq.session for _, seq in self.running}
        for session in stranded:
            self.reservations.release(session)
        idle = [session for session in stranded if session not in busy]
        self.session_registry.reset(idle)
        return [command for session in idle for command in self._forget_session(session)]

    def _start_lease(self, peer: str, now: float) -> Commands:
        """Keeps the lost peer's own sessions for `session_lease_s`, in case it comes back."""
        timer = self.session_registry.start_lease(peer, now)
        return [] if timer is None else [SetTimer(now + self.session_lease_s, timer)]

    def _expire_lease(self, timer: int, now: float) -> Commands:
        expired = self.session_registry.expire_lease(timer)
        out = [command for session in expired for command in self._forget_session(session)]
        return out + self._report_load(now) if self.watchers else out

    def _release_session(self, session: str, now: float) -> Commands:
        """Frees the session here and on the nodes that it was forwarded to: the device may not reach them itself."""
        next_nodes: set[str] = set()
        if self.session_registry.is_open(session):
            forwarded = [each for (name, _), each in self.forwarded.items() if name == session]
            next_nodes = {to for to, m in forwarded if to not in (m.reply_to, self.name)}
        self.session_registry.release(session)
        report = self._report_load(now) if self.reservations.release(session) else []
        releases = [SendMessage(node, Release(session), HEADER_NBYTES) for node in sorted(next_nodes)]
        return [*self._forget_session(session), *releases, *report]

    def _forget_session(self, session: str) -> Commands:
        self.session_registry.owners.pop(session, None)
        self.session_registry.upstream_paths.pop(session, None)
        self.reservations.release(session)
        self.queue.pop(session, None)
        self.quarantined.discard(session)
        self.session_tokens.pop(session, None)
        self.undeliverable.pop(session, None)
        self.withheld.pop(session, None)
        for key in [key for key in self.retained_requests if key[0] == session]:
            del self.retained_requests[key]
        for hop in [hop for hop in self.forwarded if hop[0] == session]:
            del self.forwarded[hop]
        if any(seq.session == session for _, seq in self.running):
            return []  # its cache is in use: dropped, or left to others, when the batch is done
        return [DropCache(*key) for key in self.kv_accounting.end_session(session)]

    def _end_if_released(self, session: str) -> Commands:
        if self.session_registry.is_open(session):
            return []
        return [DropCache(*key) for key in self.kv_accounting.end_session(session)]


def _with_kept(tokens: TokenIds, num_drafts: int, kept: TokenIds, start: int) -> TokenIds:
    """The tokens with the kept drafts of the tree behind them. Without drafts if a draft that is kept is none of them,
    or the tree is another one: that of this request itself, which has come twice.
    """
    committed = len(tokens) - num_drafts
    if committed + len(kept) != start or max(kept, default=-1) >= num_drafts:
        return tokens[:committed]
    return (*tokens[:committed], *[tokens[committed + i] for i in kept])


def _hidden_export(request: Request, seq: SequenceSlice) -> str:
    """Which hidden states the hop exports for this slice: "all", "last" or "" (none).

    None for a chunk of a prompt if only the LM head follows and it reads just the last hidden state: that of a later
    chunk.
    """
    hop = request.hops[request.hop_index]
    if request.hop_index + 1 == len(request.hops):
        return hop.hidden_export
    next_span = request.hops[request.hop_index + 1].span
    only_head_follows = next_span.start_layer == next_span.end_layer
    return "" if not seq.rule and only_head_follows and hop.hidden_export == "last" else hop.hidden_export
