"""Runs one session on a device: drafts, asks the target, applies its verdicts, as the policy's slots decide.

`handle` applies an event to the `Session`. `_advance` then asks the slots for the next step: draft on, send a request,
or accept the draft locally. Late events are recognised by the job, timer, attempt or position that they name, and
ignored.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from serving.core import draft_tree
from serving.core.draft_round import DraftRound
from serving.core.importance import importance_scores
from serving.core.session import Branch, Origins, Session
from serving.messages import (
    INF,
    CacheMiss,
    Commands,
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    DropCache,
    EmitTokens,
    Event,
    LookaheadOutcome,
    Message,
    MessageReceived,
    Outcome,
    PeerLost,
    PeerRestored,
    Reply,
    SequenceSlice,
    SessionCancelled,
    SetTimer,
    StartWork,
    TimerFired,
    TokenIds,
    WorkFailed,
    WorkFinished,
)
from serving.nodes.hop_path import HopPath
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft, NoDraft, TextDraft
from serving.policy.slots.offload import OptionalOffload, budget_range, valid_budget

_NO_SCORES: Mapping[str, tuple[float, ...]] = {}
_MAX_REPLY_TIMEOUT_S = 60.0
_MAX_ATTEMPTS = 64
"""Failed attempts at one request before the session gives up; cache misses and lost nodes take a few."""
_MAX_RETRY_S = 300.0
"""Seconds of failed attempts before the session gives up; a slow chip may need longer than one reply timeout."""

SessionState = Literal["running", "complete", "cancelled", "failed"]


class Requester:
    def __init__(
        self,
        session: Session,
        policy: Policy,
        hop_path: HopPath,
        ids: Iterator[int],
        base_timeout_s: float = INF,
        exclusive_chip: bool = True,
        has_begun: Callable[[int], bool] | None = None,
    ) -> None:
        """
        Args:
            base_timeout_s: seconds to wait for a reply before the first retry; the timeout doubles with each retry.
            exclusive_chip: if False, draft one token per job, so that other sessions' work can run in between.
                A tree is one job.
            has_begun: True if this job is on the chip; None: every job is, from the moment it is given.
        """
        self.session, self.policy, self.hop_path, self.ids = session, policy, hop_path, ids
        self.base_timeout_s, self.exclusive_chip, self.has_begun = base_timeout_s, exclusive_chip, has_begun
        self.state: SessionState = "running"
        self.job: int | None = None
        """The job on the chip whose outcome this session awaits; None: no job."""
        self.drafting_branches: list[Branch] = []
        """The branches that the job extends, one token each; empty if the job extends the draft itself."""
        self.job_started_s = 0.0
        self.timer = 0
        """The only timer that is set; 0: none. It is re-armed instead of replaced, to keep the driver's heap small."""
        self.request_sent_s = self.timer_due_s = 0.0
        self.awaiting_first_reply = False
        """True until the last request has its first reply."""
        self.reply_timeout_s = base_timeout_s
        """Seconds to wait for the next reply: doubled by each timeout, reset by a reply."""
        self.failed_attempts = 0
        """Attempts since the last reply, but for those that an outage of the link ended."""
        self.failing_since_s = 0.0
        """When the first of them began."""
        self.resent = False
        """True if the request was sent again since the last reply."""
        self.given_up = False
        self.lost_later_nodes: set[str] = set()
        """Nodes of later hops that were lost since the request was sent."""
        self.draft: Draft = policy.draft
        self.offload, self.verify = policy.offload, policy.verify
        # an object: the compiled core would refuse another type than int by itself, without a name
        self.tokens_to_offload: Callable[[Session], object] = policy.offload.tokens_to_offload
        self.least_budget, self.most_budget = budget_range(policy.offload)
        self.layer_exit, self.full_draft_probs = policy.early_exit.layer_exit, policy.payload.full_distributions
        self.device_keeps_cache = policy.kv_cache.device_keeps_cache
        self.has_drafter, self.requested_scores = policy.draft.source == "model", policy.requested_scores
        self.text_draft = policy.draft if isinstance(policy.draft, TextDraft) else None
        self.needs_importance = bool(importance_scores(self.requested_scores))
        self.has_lookahead, self.sends_drafts = policy.lookahead.max_steps > 0, policy.verify.sends_drafts
        self.ahead_tree = policy.lookahead_tree
        self.may_be_unverified = self.has_drafter and (
            not hop_path.hops or policy.early_exit.has_sequence_exit or policy.link_loss.action == "local"
        )
        """False if `_unverified` can never become True."""
        session.offline = not self._reachable()

    # Events.

    def start(self, now: float) -> Commands:
        self.session.last_emitted_s = now
        out: Commands = []
        if self.hop_path.hops and not self.session.offline and not self._stays_local():
            if self.policy.prefill.when == "first":
                out = self._send_request(now, 1, with_drafts=False)
            elif self.policy.prefill.when == "ahead" and len(self.session.tokens) > self.session.target_cached_len + 1:
                out = self._send_prompt_ahead(now)
        if self.session.in_flight_drafts is not None and self.hop_path.starts_on_device:
            return out  # the target's first hop runs on this chip, before the draft model: see `on_chip_idle`
        return out + self._advance(now)

    def _stays_local(self) -> bool:
        """True if the policy sends nothing of this session to the cloud, not even its prompt."""
        return isinstance(self.offload, OptionalOffload) and self.offload.never_offloads(self.session)

    def handle(self, event: Event, now: float) -> Commands:
        if self.state != "running":
            return []
        if isinstance(event, WorkFinished):
            return self._on_draft(event.job, event.outcome, now)
        if isinstance(event, MessageReceived):
            return self._on_message(event.message, now)
        match event:
            case WorkFailed():
                return self._on_draft_failed(now) if event.job == self.job else []
            case TimerFired():
                return self._on_timer(event.timer, now)
            case PeerLost():
                return self._on_peer_lost(event, now)
            case PeerRestored():
                return self._on_peer_restored(event, now)
            case SessionCancelled():
                return self._end("cancelled")
        return []

    def _on_message(self, message: Message, now: float) -> Commands:
        if isinstance(message, Reply):
            return self._on_reply(message, now)
        if isinstance(message, CacheMiss) and message.attempt >= self.session.attempt:
            # It is later than the session's own if the node has released the session: continue above it.
            self.session.attempt = message.attempt
            return self._retry(now)
        return []

    def _on_draft(self, job: int, outcome: Outcome, now: float) -> Commands:
        if job != self.job or not isinstance(outcome, DraftOutcome):
            return []  # the job was abandoned
        self.job, self.session.draft_cached_len = None, outcome.cached_len
        chains = self.drafting_branches and outcome.parents is None
        steps = 1 if chains else draft_tree.depth(outcome.parents, len(outcome.tokens))
        self.session.monitor.record_draft(steps, self.job_started_s, now)
        if self.drafting_branches and outcome.parents is not None:
            self.drafting_branches[0].add_tree(outcome)
        elif self.drafting_branches:
            self.session.extend_branches(outcome, self.drafting_branches, self.draft.should_stop, self.draft.keep_last)
        else:
            self.session.add_draft(outcome)
        if self.drafting_branches and self.session.in_flight_drafts is None:
            self.session.take_adopted()
        return self._next_step(now)

    def _on_draft_failed(self, now: float) -> Commands:
        """The session fails without its draft model, unless the target is beside it: then the target writes alone."""
        if not self.policy.is_colocated:
            return self._end("failed")
        self.draft, self.has_drafter = NoDraft(), False
        return self.restart_draft(now)

    def restart_draft(self, now: float) -> Commands:
        """The draft model's cache is gone or not reliable: the job that is under way begins anew, with the whole
        text.
        """
        self.session.draft_cached_len = 0
        out: Commands = [DropCache(self.session.request.session, None)]
        if self.job is None:
            return out
        self.job = None
        return out + self._next_step(now)

    def on_chip_idle(self, now: float) -> Commands:
        """The device's own hop of the target has left the chip idle: use it while a verdict is awaited."""
        waits = self.state == "running" and self.session.in_flight_drafts is not None and self.job is None
        return self._use_waiting_time(now) if waits else []

    def _on_reply(self, reply: Reply, now: float) -> Commands:
        s = self.session
        if reply.attempt != s.attempt or s.in_flight_drafts is None or reply.committed_len < len(s.tokens):
            return []  # late or duplicate
        if reply.committed_len > len(s.tokens):
            return self._retry(now, caches_lost=False)  # an earlier reply of this attempt was lost
        if not s.is_possible(reply.verdict):
            return self._retry(now)
        job, self.job = self._job_to_keep(reply), None
        growing = self.drafting_branches if job is not None else []
        if s.monitor.learner:
            self._learn(reply.verdict.accepted, now)
        s.path, s.remaining_budget = reply.path, reply.remaining_budget
        self.reply_timeout_s, self.failed_attempts, self.resent = self.base_timeout_s, 0, False
        if self.awaiting_first_reply:
            self.awaiting_first_reply, s.network_s = False, max(0.0, now - self.request_sent_s - reply.path_latency_s)
        out = self._draft_decision(s.num_accepted_in_answer(reply.verdict), s.lookahead_outcome(reply.verdict, growing))
        out += self._emit(*s.apply_verdict(reply.verdict, reply.written, reply.origins), now)
        if not self.device_keeps_cache:
            s.draft_cached_len = 0
        if reply.remaining_budget and not s.is_complete:
            s.in_flight_drafts = ()
        else:
            s.attempt += 1
        if job is not None and self._needs_job():
            self.job = job
        out += self._advance(now)
        return out

    def _job_to_keep(self, reply: Reply) -> int | None:
        """The job on the chip, if it extends branches or fills the draft model's cache with committed tokens alone.

        A fill with drafts in flight may contain rejected ones. While the target writes on, branches are of no use.
        """
        if self.job is None or not self.device_keeps_cache or (reply.remaining_budget and self.drafting_branches):
            return None
        if self.has_begun is not None and not self.has_begun(self.job):
            return None
        return self.job if self.drafting_branches or not self.session.in_flight_drafts else None

    def _needs_job(self) -> bool:
        """True if the session uses the outcome of the job that ran when the verdict came: a fill, or a step of the
        adopted branch.
        """
        s = self.session
        if s.is_complete:
            return False
        if not self.drafting_branches:
            return True
        if s.adopted not in self.drafting_branches or (s.draft and self._unverified()):
            return False
        return self.draft.next_stop(s) is not None

    def _learn(self, accepted: int, now: float) -> None:
        """Reports a round, unless the prompt's passes or a lost attempt are in its time."""
        s, sent_s = self.session, self.request_sent_s
        if s.monitor.learner and s.in_flight_drafts and s.num_generated and not self.resent:
            confidence = s.scores.get("confidence", ())
            s.monitor.learner.record(
                DraftRound(len(s.in_flight_drafts), accepted, sent_s - s.last_emitted_s, now - sent_s, confidence)
            )

    def _on_timer(self, timer: int, now: float) -> Commands:
        s = self.session
        if timer != self.timer:
            return []
        if s.in_flight_drafts is None or s.offline:
            self.timer = 0
            return []
        due_s = max(s.last_emitted_s, self.request_sent_s) + self.reply_timeout_s
        if now < due_s:  # there was progress since the timer was set
            self.timer_due_s = due_s
            return [SetTimer(due_s, timer)]
        self.timer = 0
        s.path = s.previous_path = ()  # choose nodes anew: one of these does not answer
        self.reply_timeout_s = max(self.base_timeout_s, min(2 * self.reply_timeout_s, _MAX_REPLY_TIMEOUT_S))
        return self._retry(now)

    def _on_peer_lost(self, lost: PeerLost, now: float) -> Commands:
        s, peer = self.session, lost.peer
        s.offline, s.may_have_stale_nodes = not self._reachable(), True
        if not s.offline:
            self.lost_later_nodes |= {peer} & self.hop_path.later_nodes
            return self._retry(now, attempt_failed=lost.cause == "node") if peer in s.path else []
        if s.in_flight_drafts is None:
            return []
        if self.policy.link_loss.action == "fail":
            return self._end("failed")
        return self._continue_locally(now) if self.policy.link_loss.action == "local" else []

    def _continue_locally(self, now: float) -> Commands:
        s = self.session
        self.job = None
        s.attempt += 1
        s.in_flight_drafts = None
        return self._accept_locally(now) + self._advance(now) if s.draft else self._advance(now)

    def _give_up(self, now: float) -> Commands:
        """Treats the cloud as lost for this session: it is reachable, but no attempt succeeds."""
        if self.policy.link_loss.action != "local":
            return self._end("failed")
        self.given_up = self.session.offline = True
        return self._continue_locally(now)

    def _on_peer_restored(self, restored: PeerRestored, now: float) -> Commands:
        s, peer = self.session, restored.peer
        was, s.offline = s.offline, not self._reachable()
        if s.in_flight_drafts is None:
            return self._advance(now)
        if was and not s.offline:
            self.failing_since_s = now  # time offline does not count as failing
        # Until the first reply, the path's later nodes are not known here.
        unknown = self.awaiting_first_reply and peer in self.lost_later_nodes
        loss = self.hop_path.loss(s.path)
        if s.offline or not (was or unknown or peer in s.path) or loss == "link":
            return []  # a link brings all nodes behind it back at this instant: the last of the path is awaited
        return self._retry(now, caches_lost=loss == "node", attempt_failed=restored.cause == "node")

    def _reachable(self) -> bool:
        return not self.given_up and self.hop_path.reachable()

    # Decisions.

    def _advance(self, now: float) -> Commands:
        return self._end("complete") if self.session.is_complete else self._next_step(now)

    def _next_step(self, now: float) -> Commands:
        s = self.session
        if self.job is not None:
            return []
        if s.in_flight_drafts is not None:
            return self._use_waiting_time(now)
        if self.text_draft and not s.draft and (found := self.text_draft.proposal(s)):
            s.add_draft(found)
        unverified = self.may_be_unverified and self._unverified()
        stop = self._unverified_stop() if unverified else self.draft.next_stop(s) or self._importance_stop()
        if stop:
            return self._start_draft(stop, now)
        budget = 0 if unverified else self._token_budget()
        if budget:
            return self._on_unreachable(budget) if s.offline else self._send_request(now, budget)
        if not s.draft:
            raise RuntimeError(f"{self.hop_path.name}: policy {self.policy.name} drafted nothing and offloads nothing")
        return self._accept_locally(now) + self._advance(now)

    def _unverified(self) -> bool:
        """True if the target will not verify what is drafted now. Each token is then emitted at once."""
        return self.may_be_unverified and (
            not self.hop_path.hops
            or self.policy.early_exit.past_sequence_exit(self.session)
            or (self.session.offline and self.policy.link_loss.action == "local")
        )

    def _unverified_stop(self) -> DraftStopRule | None:
        return None if self.session.draft else DraftStopRule(1)

    def _importance_stop(self) -> DraftStopRule | None:
        """A complete draft adopted from a branch is fed to the model once, to compute its importance."""
        return DraftStopRule(0) if self.needs_importance and self.session.num_unscored else None

    def _token_budget(self) -> int:
        """Tokens that the target may write now; 0: keep the draft. Without a draft, always at least one."""
        if not self.session.draft and self.has_drafter:
            return 1
        budget = self.tokens_to_offload(self.session)
        if isinstance(budget, int) and self.least_budget <= budget <= self.most_budget:
            return budget
        return valid_budget(self.offload, budget)

    def _use_waiting_time(self, now: float) -> Commands:
        """While a verdict is awaited: prefill the draft model, then draft ahead."""
        s = self.session
        may_fill = self.has_drafter and self.device_keeps_cache and len(s.tokens) > 1
        if may_fill and s.draft_cached_len < max(1, s.prompt_len - 1):
            return self._start_draft(DraftStopRule(0), now)
        return self._start_lookahead(now) if self.has_lookahead else []

    def _on_unreachable(self, budget: int) -> Commands:
        """The cloud is lost: fail, or keep the request in flight until the cloud is back."""
        if self.policy.link_loss.action == "fail":
            return self._end("failed")
        self.session.start_verification(self.verify.sends_drafts, self.verify.rule(self.session))
        self.session.remaining_budget = budget
        return []

    def _accept_locally(self, now: float) -> Commands:
        """Emits the draft without verification. It is reported only if the policy decided so."""
        decision = [] if self._unverified() else self._draft_decision(None)
        return decision + self._emit(*self.session.accept_locally(), now)

    def _end(self, ending: Literal["complete", "cancelled", "failed"]) -> Commands:
        self.state, self.job = ending, None
        out: Commands = [EmitTokens(self.session.request.session, (), (), ending)]
        return out if self.keeps_cache else out + self.hop_path.release_commands(self.session, self.leaves_draft_cache)

    @property
    def keeps_cache(self) -> bool:
        """True if this session has ended and its caches are kept for its next request.

        The caches are not kept while the target may still write tokens of its budget: the release stops it.
        """
        writes_on = self.session.remaining_budget > 1
        return self.session.request.keep_cache and self.state in ("complete", "cancelled") and not writes_on

    @property
    def leaves_draft_cache(self) -> bool:
        """True if this session has ended, and its device keeps the draft model's cache alone, for another session."""
        left = self.policy.kv_cache.device_idle_sessions > 0 and self.session.draft_cached_len > 0
        return left and not self.keeps_cache and self.state in ("complete", "cancelled")

    def _emit(self, tokens: TokenIds, origins: Origins, now: float) -> Commands:
        self.session.last_emitted_s = now
        return [EmitTokens(self.session.request.session, tokens, origins)]

    def _draft_decision(self, accepted: int | None, lookahead_outcome: LookaheadOutcome = "") -> Commands:
        s = self.session
        if not s.draft:
            return []
        scores = {name: tuple(values) for name, values in s.scores.items()} if s.scores else _NO_SCORES
        draft, shape = tuple(s.draft), s.draft_parents
        replaced = accepted is not None and not s.in_flight_drafts
        name, position = s.request.session, len(s.tokens)
        return [DraftDecision(name, position, draft, scores, accepted, lookahead_outcome, shape, replaced)]

    # Work on the device's chip.

    def _start_draft(self, stop: DraftStopRule, now: float) -> Commands:
        s = self.session
        start, input_tokens = s.draft_input()
        if not stop.max_tokens:  # nothing is generated: the last token belongs to the job that continues from it
            input_tokens = input_tokens[:-1]
        elif not self.exclusive_chip and stop.max_tokens > 1 and not stop.tree:
            stop = replace(stop, max_tokens=1)
        work = self._draft_work(start, input_tokens, stop, s.num_unscored if self.needs_importance else 0)
        return self._start_work(work, [], now)

    def _start_lookahead(self, now: float) -> Commands:
        """Extends each branch by one token, or grows a tree behind the only one. Work cannot be cancelled, so a verdict
        waits for one token, or for the tree, at most.
        """
        s = self.session
        if not s.lookahead_started:
            s.lookahead_started = True
            s.branches = [Branch(accepted, token) for accepted, token in self.policy.lookahead.assumed_verdicts(s)]
        growing = s.growing_branches(self.policy.lookahead.num_steps(s))
        if not growing:
            return []
        start, branch_inputs = s.branch_inputs(growing)
        stop = self.ahead_tree if self.ahead_tree and growing[0].token is not None else DraftStopRule(1)
        return self._start_work(self._draft_work(start, (), stop, branches=branch_inputs), growing, now)

    def _draft_work(
        self,
        start: int,
        input_tokens: TokenIds,
        stop: DraftStopRule,
        num_adopted_drafts: int = 0,
        branches: tuple[TokenIds, ...] = (),
    ) -> DraftWork:
        request = self.session.request
        return DraftWork(
            request.session,
            start,
            input_tokens,
            stop,
            request.stop_tokens,
            self.requested_scores,
            request.sampling,
            self.layer_exit,
            branches,
            num_adopted_drafts,
            self.full_draft_probs,
            None if branches else self.session.stop_text_after_draft,
        )

    def _start_work(self, work: DraftWork, branches: list[Branch], now: float) -> Commands:
        self.job, self.drafting_branches, self.job_started_s = next(self.ids), branches, now
        self.session.draft_cached_len = work.start
        return [StartWork(self.job, work)]

    # Requests to the target.

    def _send_request(self, now: float, budget: int, with_drafts: bool = True) -> Commands:
        s = self.session
        s.remaining_budget = budget
        seq = s.start_verification(with_drafts and self.sends_drafts, self.verify.rule(s))
        out = self.hop_path.requests(s, seq, budget, now)
        self.request_sent_s, self.awaiting_first_reply = now, True
        self.lost_later_nodes.clear()
        if self.base_timeout_s < INF and not (self.timer and self.timer_due_s <= now + self.reply_timeout_s):
            self.timer, self.timer_due_s = next(self.ids), now + self.reply_timeout_s
            out.append(SetTimer(self.timer_due_s, self.timer))
        if not self.hop_path.starts_on_device:  # else the target's first hop needs the chip
            out += self._use_waiting_time(now)
        return out

    def _send_prompt_ahead(self, now: float) -> Commands:
        """Sends the prompt without its last token, which belongs to the first request."""
        s = self.session
        start, end = s.target_cached_len, len(s.tokens) - 1
        seq = SequenceSlice(s.request.session, start, end - start, tuple(s.tokens[start:end]))
        out = self.hop_path.requests(s, seq, 1, now)
        s.target_cached_len = end
        return out

    def _retry(self, now: float, caches_lost: bool = True, attempt_failed: bool = True) -> Commands:
        """Starts a new attempt at the request in flight.

        Args:
            caches_lost: resend the whole sequence.
            attempt_failed: False if a link was out, which says nothing about the request and loses all nodes behind
                it. A connection may have broken because of the request.
        """
        s = self.session
        waiting = s.in_flight_drafts is not None
        if caches_lost or s.kept_tree_nodes is not None:  # nodes apply `kept_tree_nodes` once
            s.invalidate_path()
        else:
            s.attempt += 1
        if not waiting or s.offline:
            return []
        if attempt_failed and self._has_failed_for_long(now):
            return self._give_up(now)
        self.job, self.resent = None, True  # the lookahead belongs to the old attempt
        s.in_flight_drafts = None
        return self._send_request(now, s.remaining_budget)

    def _has_failed_for_long(self, now: float) -> bool:
        self.failed_attempts += 1
        if self.failed_attempts == 1:
            self.failing_since_s = now
        limit_s = max(_MAX_RETRY_S, 4 * self.base_timeout_s)
        return self.failed_attempts > _MAX_ATTEMPTS or now > self.failing_since_s + limit_s
