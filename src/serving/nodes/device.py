"""A device: a `Requester` for each session of its user, and a `Worker` if the placement puts target layers on it.

Messages between the two stay on the device: requests to the local hops and replies from them, and the tokens in both.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from serving.core.link_monitor import DeviceMonitor, LinkRate
from serving.core.session import Session
from serving.core.stop_strings import TokenText, no_token_text
from serving.hardware.estimator import ZERO_ESTIMATOR, Estimator
from serving.messages import (
    HEADER_NBYTES,
    INF,
    CacheMiss,
    Command,
    Commands,
    DropCache,
    EmitTokens,
    Event,
    ForwardWork,
    GenerationRequest,
    Hop,
    LoadReport,
    Message,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SessionCancelled,
    StartWork,
    TimerFired,
    WorkFailed,
    WorkFinished,
)
from serving.nodes.compute_queue import ComputeQueue, FinishedWork
from serving.nodes.draft_caches import DeviceDraftCaches, DraftCaches, SharedDraftCaches
from serving.nodes.hop_path import HopPath, NodeSelector, TierNodes
from serving.nodes.requester import Requester
from serving.nodes.round_timing import ChipProfile, RoundTiming
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.draft import GoodputDraft, LearningDraft
from serving.policy.slots.placement import DEVICE_TIER
from serving.policy.slots.scheduler import ContinuousBatch, Scheduler

MAX_IDLE_SESSIONS = 48
"""Below the number of open sessions that a host allows a node, since the host would release one of them."""
_NAME = "device-"
"""Names of devices begin so, and no worker's does: a tier cannot be called `device` (`hardware/testbed.py`)."""


def device_names(count: int) -> tuple[str, ...]:
    return tuple(f"{_NAME}{i}" for i in range(count))


def is_device(node: str) -> bool:
    """True for a device's name, also behind the policy's name and a dot, which the page puts before it."""
    return node.rpartition(".")[2].startswith(_NAME)


@dataclass(frozen=True)
class LocalTarget:
    """How a device runs the target's hops that are placed on it.

    drafts     `last`: the target goes first, as on a user's device. `first`: no batch of the target is formed while a
               draft runs or waits, so that the sessions' drafts are verified together, as by servers that draft.
               `apart`: by such a server, on chips of their own
    profile    what both models take on these chips, for a draft slot that weighs the one against the other
    """

    scheduler: Scheduler
    capacity_tokens: float = INF
    estimator: Estimator = ZERO_ESTIMATOR
    drafts: Literal["last", "first", "apart"] = "last"
    profile: ChipProfile | None = None


_ON_USERS_DEVICE = LocalTarget(ContinuousBatch())


class Device:
    """
    Args:
        timeout_s: how long a session waits for a reply before its first retry.
        max_concurrency: how many sessions run at a time; the others wait.
        hidden_nbytes: bytes of one token's hidden state on the link.
        token_text: the tokenizer's, for requests with stop strings.
        max_idle_sessions: how many ended sessions keep their caches.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        hops: tuple[Hop, ...],
        tiers: TierNodes,
        seed: int,
        timeout_s: float = INF,
        max_concurrency: int = 1,
        hidden_nbytes: int = 0,
        token_text: TokenText = no_token_text,
        local_target: LocalTarget = _ON_USERS_DEVICE,
        max_idle_sessions: int = MAX_IDLE_SESSIONS,
        idle_reports: Mapping[str, LoadReport] | None = None,
    ) -> None:
        self.name, self.policy, self.seed, self.timeout_s = name, policy, seed, timeout_s
        self.max_concurrency, self.token_text, self.max_idle_sessions = max_concurrency, token_text, max_idle_sessions
        tiers = {**tiers, DEVICE_TIER: (name,)}
        self.node_selector = NodeSelector(tiers, policy.dispatch, name, policy.kv_cache.block_tokens, idle_reports)
        self.ids = count(1)
        """Job and timer ids, unique within the node."""
        self.hop_path = HopPath(name, policy, hops, self.node_selector)
        learner = policy.draft.new_learner() if isinstance(policy.draft, LearningDraft) else None
        self.monitor = DeviceMonitor(hidden_nbytes, learner=learner)
        self.waiting: deque[tuple[GenerationRequest, float]] = deque()
        """Requests, each with when it arrived."""
        self.active: dict[str, Requester] = {}
        """Session -> its requester."""
        self.idle_sessions: dict[str, Session] = {}
        """Ended sessions whose caches are kept for the next request, the longest idle first."""
        is_tier, apart = any(hop.node == DEVICE_TIER for hop in hops), local_target.drafts == "apart"
        self.compute_queue = ComputeQueue(self.ids, policy.batch_drafts) if max_concurrency > 1 or is_tier else None
        """Orders work on the chip; None if there is never more than one piece of work."""
        self.target_queue = ComputeQueue(self.ids) if apart else None
        """Orders the target's passes where drafts have chips of their own."""
        self.drafts_first, self.is_server = local_target.drafts == "first", local_target.drafts != "last"
        self.round_timing: RoundTiming | None = None
        """Where the draft slot weighs drafts against the passes of the target on this chip."""
        if isinstance(policy.draft, GoodputDraft) and local_target.profile:
            self.round_timing = RoundTiming(local_target.profile, policy.batch_drafts, apart=apart)
            self.monitor.round_s = self.round_timing.round_s
        self.draft_caches = _draft_caches(policy, self.is_server)
        self.local_worker: Worker | None = None
        """Runs the hops that are placed on this device."""
        if is_tier:
            self.local_worker = Worker(
                name, policy, tiers, capacity_tokens=local_target.capacity_tokens, estimator=local_target.estimator,
                scheduler=local_target.scheduler, ids=self.ids, token_text=token_text, idle_reports=idle_reports,
            )  # fmt: skip
            if self.local_worker.monitor:
                self.monitor.local_hop_time = self.local_worker.monitor.batch_time

    @property
    def active_requester(self) -> Requester | None:
        """The first active session's requester: the only one unless `max_concurrency` is larger."""
        return next(iter(self.active.values()), None)

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        if not self.compute_queue:
            commands = self._handle(event, now)
        else:
            commands = self._handle_queued(event, now, self.compute_queue)
        if isinstance(event, WorkFinished | WorkFailed):
            self.monitor.chip_free_s = now
        return commands

    def _handle_queued(self, event: Event, now: float, queue: ComputeQueue) -> Commands:
        """Handles the event; then lets the chip begin its next job."""
        worker, commands = self.local_worker if self.drafts_first else None, list[Command]()
        if worker and not (isinstance(event, TimerFired) and event.timer == worker.timer):
            worker.held = True  # until it is known which sessions draft on
        if isinstance(event, WorkFinished | WorkFailed):
            ended = self.target_queue if self.target_queue and self.target_queue.runs(event.job) else queue
            if self.round_timing:
                self._time_round(self.round_timing, ended, event, now)
            for done in ended.finish(event):
                commands += self._handle_own_messages(self._on_work_done(done, now), now)
        else:
            commands = self._handle_own_messages(self._handle(event, now), now)
        freed = self._drop_drafter_caches(commands, now) if self.is_server else []
        while freed:
            commands += freed
            freed = self._drop_drafter_caches(freed, now)
        if self.target_queue:
            out = queue.add(self.target_queue.add_passes(commands))
            out += self.target_queue.start_next(self._is_wanted, False, now)
            return out + queue.start_next(self._is_wanted, False, now)
        out = queue.add(commands)
        if worker and not queue.has_drafts(self._is_wanted):
            out += worker.resume(now)
        pending = self.local_worker is not None and self.local_worker.forms_batch_now
        return out + queue.start_next(self._is_wanted, pending, now)

    def _time_round(
        self, timing: RoundTiming, queue: ComputeQueue, event: WorkFinished | WorkFailed, now: float
    ) -> None:
        start = queue.running
        if start is None or not queue.runs(event.job) or isinstance(event, WorkFailed):
            return
        timing.record(start.work, event.outcome, now - queue.started_s)
        if isinstance(start.work, ForwardWork):
            timing.update([len(each.session.tokens) for each in self.active.values()])

    def _is_wanted(self, start: StartWork) -> bool:
        """True if a session or the worker still uses the outcome of this work."""
        if isinstance(start.work, ForwardWork):
            return self.local_worker is not None and start.job == self.local_worker.job
        current = self.active.get(start.work.session)
        return current is not None and start.job == current.job

    def _handle_own_messages(self, commands: Commands, now: float) -> Commands:
        """Delivers the messages that this device sends to itself. Returns all other commands."""
        out: Commands = []
        queue = deque(commands)
        while queue:
            command = queue.popleft()
            if isinstance(command, SendMessage) and command.to == self.name:
                queue.extendleft(reversed(self._on_message(command.message, now)))
            else:
                out.append(command)
        return out

    def _handle(self, event: Event, now: float) -> Commands:
        """Handles what concerns the whole device, frequent events first, and passes the rest to its sessions."""
        match event:
            case MessageReceived(message):
                return self._on_link_message(message, now)
            case WorkFinished() | WorkFailed():
                return self._notify_all(event, now)
            case TimerFired(timer):
                if self.local_worker and self.local_worker.awaits(timer):
                    return self.local_worker.handle(event, now)
                return self._notify_all(event, now)
            case RequestArrived(call):
                self.waiting.append((call, now))
                return self._start_waiting(now)
            case SessionCancelled(session):
                current = self.active.get(session)
                return self._notify(current, event, now) if current else self._cancel(session)
            case PeerLost():
                self.node_selector.mark_lost(event)
                if event.cause == "node":
                    self.monitor.downlink = LinkRate()  # the node's clock may begin anew
                for idle in self.idle_sessions.values():
                    idle.may_have_stale_nodes = True
                return self._notify_all(event, now) + (
                    self.local_worker.handle(event, now) if self.local_worker else []
                )
            case PeerRestored():
                own = self.local_worker.handle(event, now) if self.local_worker else []  # it counts causes of its own
                return own + self._notify_all(event, now) if self.node_selector.mark_restored(event) else own
        return []

    # Messages.

    def _on_link_message(self, message: Message, now: float) -> Commands:
        """A message from another node."""
        if isinstance(message, Request) and self.policy.monitors_link:
            nbytes = HEADER_NBYTES + message.slice.nbytes
            self.monitor.record_message(nbytes, message.sent_s, message.path_stats, now)
        elif isinstance(message, Reply) and message.path_stats:
            self.monitor.record_message(0, None, message.path_stats, now)
        return self._on_message(message, now)

    def _on_message(self, message: Message, now: float) -> Commands:
        if isinstance(message, Reply | CacheMiss):
            current = self.active.get(message.session)
            return self._notify(current, MessageReceived(message), now) if current else []
        if isinstance(message, LoadReport):
            self.node_selector.load_reports[message.node] = message
        return self.local_worker.handle(MessageReceived(message), now) if self.local_worker else []

    # Work on the chip.

    def _on_work_done(self, done: FinishedWork, now: float) -> Commands:
        event, here = done.event, self.local_worker
        if done.session:
            current = self.active.get(done.session)
            if not current or event.job != current.job:
                return []
            return current.restart_draft(now) if done.failed_in_batch else self._notify(current, event, now)
        if not here:
            return []
        out = self._handle_own_messages(here.handle(event, now), now)
        if not here.queue:  # the sessions may use the chip; they have seen the hop's messages by now
            out += [command for each in list(self.active.values()) for command in each.on_chip_idle(now)]
        return out

    def _drop_drafter_caches(self, commands: Sequence[Command], now: float) -> Commands:
        """Frees the drafter's caches of the sessions whose caches of the target are evicted: both share the memory that
        is counted, or a draft without the target's cache is of no use. An idle session is forgotten with them.
        """
        evicted = [each.session for each in commands if isinstance(each, DropCache) and each.start_layer is not None]
        out: Commands = []
        for session in evicted:
            if current := self.active.get(session):
                out += current.restart_draft(now)  # a shorter draft may be whole, and so sent to the target here
            elif session in self.idle_sessions:
                out += self._release(session)
            elif self.draft_caches:
                out += self.draft_caches.free(session)
        return self._handle_own_messages(out, now)

    # Sessions.

    def _notify(self, requester: Requester, event: Event, now: float) -> Commands:
        out = requester.handle(event, now)
        if requester.state != "running":
            out = out + self._close(requester) + self._start_waiting(now)
        return out

    def _notify_all(self, event: Event, now: float) -> Commands:
        """Every session gets the event, and ignores what is not its own."""
        if len(self.active) == 1:
            (current,) = self.active.values()
            return self._notify(current, event, now)
        return [command for each in list(self.active.values()) for command in self._notify(each, event, now)]

    def _start_waiting(self, now: float) -> Commands:
        """Starts waiting sessions, oldest first, up to `max_concurrency`."""
        out: Commands = []
        while self.waiting and len(self.active) < self.max_concurrency:
            call, arrived_s = self.waiting.popleft()
            session = Session(call, self.seed, self.monitor, self.token_text, arrived_s)
            if old := self.idle_sessions.pop(session.request.session, None):
                self._resume(session, old)
            else:
                out += self.draft_caches.take(session) if self.draft_caches else []
            current = Requester(
                session, self.policy, self.hop_path, self.ids, self.timeout_s, self.max_concurrency == 1,
                self.compute_queue.has_begun if self.compute_queue else None,
            )  # fmt: skip
            self.active[session.request.session] = current
            out += current.start(now)
            if current.state != "running":
                out += self._close(current)
        return out

    def _resume(self, session: Session, old: Session) -> None:
        session.resume(old)
        if not self.node_selector.lost_nodes.keys().isdisjoint(session.path):
            session.invalidate_path()

    def _close(self, requester: Requester) -> Commands:
        """Removes an ended session. If its caches are kept, those of the longest idle session may be freed instead."""
        name = requester.session.request.session
        del self.active[name]
        if self.compute_queue:
            self.compute_queue.quarantined.discard(name)
        if requester.leaves_draft_cache and isinstance(self.draft_caches, DeviceDraftCaches):
            return self.draft_caches.keep(requester.session)
        if not requester.keeps_cache or name in self.idle_sessions:
            return []
        self.idle_sessions[name] = requester.session
        too_many = len(self.idle_sessions) > self.max_idle_sessions
        return self._release(next(iter(self.idle_sessions))) if too_many else []

    def _release(self, session: str) -> Commands:
        old = self.idle_sessions.pop(session)
        return self.hop_path.release_commands(old, self._shares_draft_cache(old))

    def _shares_draft_cache(self, ended: Session) -> bool:
        """True if the ended session's draft cache stays for others, beside its target's."""
        if not isinstance(self.draft_caches, SharedDraftCaches) or self.local_worker is None:
            return False
        target = ended.request.session, self.hop_path.hops[0].span.start_layer
        return self.local_worker.kv_accounting.has_cache(target) and self.draft_caches.keep(ended)

    def _cancel(self, session: str) -> Commands:
        """A request that waits is dropped, and the caches of its conversation are kept; if none waits, they are
        freed.
        """
        kept = deque(each for each in self.waiting if each[0].session != session)
        if len(kept) < len(self.waiting):
            self.waiting = kept
            return [EmitTokens(session, (), (), "cancelled")]
        return self._release(session) if session in self.idle_sessions else []


def _draft_caches(policy: Policy, is_server: bool) -> DraftCaches | None:
    """None where ended sessions leave none. A copy needs caches of all layers, which early exits leave incomplete."""
    cache = policy.kv_cache
    if is_server and cache.idle_sessions is not None and policy.early_exit.layer_exit is None:
        return SharedDraftCaches(cache.block_tokens)
    return DeviceDraftCaches(cache.device_idle_sessions) if cache.device_idle_sessions else None
