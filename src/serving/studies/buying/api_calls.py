"""The calls that devices would make of a hosted API: observed in a load test of the same policy with a cloud."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from serving.hardware.hosted_api import HostedApi
from serving.messages import INF, Command, Event, Message, MessageReceived, Outcome, Reply, Request, Work


@dataclass(slots=True)
class ApiCall:
    """One request to the cloud with all tokens that it brings; times are seconds of the run's clock."""

    asked_s: float
    input_tokens: int = 0
    """The whole text before the first new token: an API keeps no session."""
    output_tokens: int = 0
    first_reply_s: float = INF
    last_reply_s: float = INF

    def first_delay_s(self, api: HostedApi) -> float:
        """How much later than from the run's cloud the first token leaves the API; below 0 if it is faster."""
        return api.ttft_s - (self.first_reply_s - self.asked_s)

    def delay_s(self, api: HostedApi) -> float:
        """How much later the last token leaves the API."""
        return api.call_s(self.output_tokens) - (self.last_reply_s - self.asked_s)


@dataclass
class ApiCallObserver:
    """An observer of the calls of each session; `workers` are the nodes of the cloud."""

    workers: Container[str]
    calls: dict[str, list[ApiCall]] = field(default_factory=dict)
    _open: dict[str, ApiCall] = field(default_factory=dict)
    """The call of a session that brings further tokens."""

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if node in self.workers and type(event) is MessageReceived and type(event.message) is Request:
            session = event.message.slice.session
            if session not in self._open:
                self._open[session] = ApiCall(now)
                self.calls.setdefault(session, []).append(self._open[session])

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:  # noqa: ARG002
        if node not in self.workers or type(message) is not Reply:
            return
        call = self._open.get(message.session)
        if call is None:
            return
        if not call.output_tokens:
            call.input_tokens, call.first_reply_s = message.committed_len, now
        call.output_tokens += 1 + message.verdict.accepted
        call.last_reply_s = now
        if not message.remaining_budget:
            del self._open[message.session]
