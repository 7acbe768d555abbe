"""A node of the cloud that drafts and verifies: users' devices send it prompts, and it streams the answers.

Speculative decoding in a server, as vLLM and others have it. The node holds a `Device`, which has a requester for each
session and a worker for the target: what drafts on devices drafts here, by the same slots. On one chip all sessions
draft together, and their drafts are verified in one pass; with chips of its own for the draft model some draft while
others are verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.core.stop_strings import TokenText, no_token_text
from serving.messages import (
    HEADER_NBYTES,
    CacheMiss,
    Command,
    Commands,
    EmitTokens,
    Event,
    GenerationRequest,
    Hop,
    Message,
    MessageReceived,
    Origin,
    PeerLost,
    PeerRestored,
    Release,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SessionCancelled,
    SetTimer,
    Span,
    StopText,
    TimerFired,
    TokenIds,
    Verdict,
    reply_nbytes,
)
from serving.nodes.device import Device, LocalTarget
from serving.nodes.session_registry import SessionRegistry
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.placement import DEVICE_TIER

_UNLIMITED = 2**31
"""Neither running nor idle sessions are bounded here. The scheduler bounds the target's batches, and the KV accounting
the caches: an idle session is forgotten when its cache is evicted. A host bounds the sessions that a device opens. The
drafts of all sessions run in one forward.
"""


_NO_STOP_TEXT = StopText(())
_CLOUD_ORIGIN: dict[Origin, Origin] = {"accepted": "cloud_accepted"}
"""What a device of this node calls accepted was drafted in the cloud."""


@dataclass(slots=True)
class _Answer:
    """An answer that is being written for a user's device."""

    reply_to: str
    attempt: int
    committed_len: int
    remaining_budget: int
    arrived_s: float


class Speculator:
    """Answers the prompts of users' devices, by a `Device` of its own that keeps each answer's caches.

    Args:
        policy: the whole policy; users' devices follow its `on_device`.
        span: the target's layers, all of them.
        seed: keys the random decisions about sessions that bring no seed.
        target: how the layers run on this node's chip.
        session_lease_s: how long the sessions of a lost device are kept.
        token_text: the tokenizer's, for requests with stop strings.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        span: Span,
        seed: int,
        target: LocalTarget,
        session_lease_s: float = 30.0,
        token_text: TokenText = no_token_text,
    ) -> None:
        self.name, self.session_lease_s = name, session_lease_s
        self.device = Device(
            name,
            policy,
            (Hop(DEVICE_TIER, span),),
            {},
            seed,
            max_concurrency=_UNLIMITED,
            token_text=token_text,
            local_target=target,
            max_idle_sessions=_UNLIMITED,
        )
        self.session_registry = SessionRegistry()
        self.answers: dict[str, _Answer] = {}

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, MessageReceived):
            return self._to_users(self._on_message(event.message, now), now)
        if isinstance(event, TimerFired) and event.timer in self.session_registry.leases:
            return self._to_users(self._expire_lease(event.timer, now), now)
        if isinstance(event, PeerLost):
            return self._start_lease(event.peer, now)
        if isinstance(event, PeerRestored):
            return []
        return self._to_users(self.device.handle(event, now), now)

    @property
    def worker(self) -> Worker:
        """Runs the target."""
        assert self.device.local_worker
        return self.device.local_worker

    @property
    def is_idle(self) -> bool:
        """True if no answer is being written."""
        return not self.device.active

    # What devices send.

    def _on_message(self, message: Message, now: float) -> Commands:
        if isinstance(message, Request):
            return self._on_request(message, now)
        return self._release(message.session, now) if isinstance(message, Release) else []

    def _on_request(self, m: Request, now: float) -> Commands:
        session, registry = m.slice.session, self.session_registry
        status = registry.register(m, now)
        if status == "released":
            return [self._miss(m.reply_to, session, registry.newest_attempt[session])]
        if status == "superseded" or self._is_answered(m):
            return []
        registry.newest_attempt[session] = m.attempt
        known = self._known_tokens(session)
        if len(known) < m.slice.start:
            return [self._miss(m.reply_to, session, m.attempt)]
        return self._answer(m, (*known[: m.slice.start], *m.slice.tokens), now)

    def _is_answered(self, m: Request) -> bool:
        """True for a duplicate. A device that has restarted, whose newest attempt is forgotten, counts from 0 again."""
        answer = self.answers.get(m.slice.session)
        return (
            answer is not None
            and m.slice.session in self.session_registry.newest_attempt
            and (m.attempt <= answer.attempt)
        )

    def _known_tokens(self, session: str) -> TokenIds:
        running = self.device.active.get(session)
        found = running.session if running else self.device.idle_sessions.get(session)
        return tuple(found.tokens) if found else ()

    def _answer(self, m: Request, prompt: TokenIds, now: float) -> Commands:
        session, seq = m.slice.session, m.slice
        out = self._stop(session, now)  # an older attempt; its caches are kept
        self.answers[session] = _Answer(m.reply_to, m.attempt, len(prompt), m.budget, now)
        written = m.stop_text or _NO_STOP_TEXT
        request = GenerationRequest(
            session, prompt, m.budget, m.stop_tokens, seq.sampling, m.slo_tokens_per_s, m.slack_s, keep_cache=True,
            stop_strings=written.strings, stop_tail=written.tail,
        )  # fmt: skip
        return out + list(self.device.handle(RequestArrived(request), now))

    def _miss(self, reply_to: str, session: str, attempt: int) -> SendMessage:
        return SendMessage(reply_to, CacheMiss(session, attempt, self.name), HEADER_NBYTES)

    # What devices receive.

    def _to_users(self, commands: Sequence[Command], now: float) -> Commands:
        """The commands, with emitted tokens sent to the users' devices."""
        out: Commands = []
        for command in commands:
            if isinstance(command, EmitTokens):
                out += self._reply(command, now)
            else:
                out.append(command)
        return out

    def _reply(self, emitted: EmitTokens, now: float) -> Commands:
        answer = self.answers.get(emitted.session)
        if answer is None or not (emitted.tokens or emitted.ending == "failed"):
            return []
        if not emitted.tokens:
            return [self._miss(answer.reply_to, emitted.session, answer.attempt)]
        written, last, before = emitted.tokens[:-1], emitted.tokens[-1], answer.committed_len
        answer.committed_len += len(emitted.tokens)
        answer.remaining_budget -= len(emitted.tokens)
        remaining = answer.remaining_budget if emitted.session in self.device.active else 0
        latency_s, path = now - answer.arrived_s, (self.name,)
        origins = tuple([_CLOUD_ORIGIN.get(origin, origin) for origin in emitted.origins])
        reply = Reply(
            emitted.session, answer.attempt, before, Verdict(0, last), path, remaining, latency_s, None, written,
            origins,
        )  # fmt: skip
        return [SendMessage(answer.reply_to, reply, reply_nbytes(reply))]

    # Sessions that end.

    def _stop(self, session: str, now: float) -> Commands:
        """Stops writing an answer; its caches are kept."""
        if self.answers.pop(session, None) is None or session not in self.device.active:
            return []
        return list(self.device.handle(SessionCancelled(session), now))

    def _release(self, session: str, now: float) -> Commands:
        self.session_registry.release(session)
        return self._forget(session, now)

    def _forget(self, session: str, now: float) -> Commands:
        """Frees the session's caches."""
        out = self._stop(session, now)
        self.session_registry.owners.pop(session, None)
        self.session_registry.upstream_paths.pop(session, None)
        return out + list(self.device.handle(SessionCancelled(session), now))

    def _start_lease(self, peer: str, now: float) -> Commands:
        """Keeps the lost device's sessions for `session_lease_s`, in case it comes back."""
        timer = self.session_registry.start_lease(peer, now)
        return [] if timer is None else [SetTimer(now + self.session_lease_s, timer)]

    def _expire_lease(self, timer: int, now: float) -> Commands:
        expired = self.session_registry.expire_lease(timer)
        return [command for session in expired for command in self._forget(session, now)]
