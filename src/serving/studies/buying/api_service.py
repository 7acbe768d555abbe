"""How a policy serves with a hosted API in place of its cloud: what is billed, how fast answers are, what they take."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.drivers.observer import Observer
from serving.hardware.hosted_api import HostedApi
from serving.metrics.recorder import Recorder, SessionRecord
from serving.outcomes.outcomes import OutcomeSource
from serving.studies.buying.api_calls import ApiCall, ApiCallObserver
from serving.studies.capacity.load_test import LoadTest, in_each_class, simulate_load
from serving.studies.capacity.spending import device_j, over_tokens, radio_j_by_session
from serving.workload.slo import SloClass


@dataclass(frozen=True)
class ApiService:
    """Means over the answers of a lone device of each SLO class; its time with the API replaces its time with a cloud.

    An API carries any number of devices: limits of rate are not known.
    """

    answers: int
    tokens: float
    """Of an answer."""
    calls: float
    input_tokens: float
    """Billed for an answer."""
    output_tokens: float
    ttft_s: float
    tokens_per_s: float
    violations: Mapping[str, float]
    """The share of late answers of each SLO class."""
    device_j_per_token: float | None
    radio_j_per_token: float | None

    @property
    def device_total_j_per_token(self) -> float | None:
        """Chip and radio of the device."""
        if self.device_j_per_token is None or self.radio_j_per_token is None:
            return None
        return self.device_j_per_token + self.radio_j_per_token

    def usd_per_token(self, api: HostedApi) -> float:
        """US dollars for a token of the text."""
        return api.usd(self.input_tokens, self.output_tokens) / self.tokens

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Answer:
    """One answer as the API would have given it."""

    slo: SloClass
    record: SessionRecord
    calls: Sequence[ApiCall]
    api: HostedApi
    topology: Topology
    radio_j: float | None

    @property
    def device_j(self) -> float | None:
        """Joules of the device's chip."""
        return device_j(self.record, self.topology, self.delay_s)

    @property
    def delay_s(self) -> float:
        """The device waits for every call, so an answer ends as much later as its calls together."""
        return sum(call.delay_s(self.api) for call in self.calls)

    @property
    def ttft_s(self) -> float:
        first_s = self.record.token_times_s[0]
        before = [call for call in self.calls if call.first_reply_s <= first_s]
        delays_s = [call.delay_s(self.api) for call in before[:-1]]
        delays_s += [call.first_delay_s(self.api) for call in before[-1:]]
        return first_s - self.record.arrived_s + sum(delays_s)

    @property
    def tokens_per_s(self) -> float:
        return len(self.record.tokens) / (self.record.token_times_s[-1] - self.record.arrived_s + self.delay_s)

    @property
    def is_late(self) -> bool:
        too_slow = self.tokens_per_s < self.slo.tokens_per_s
        return too_slow or (self.slo.ttft_s is not None and self.ttft_s > self.slo.ttft_s)


def measure_api(setup: Setup, outcomes: OutcomeSource, load_test: LoadTest, api: HostedApi, seed: int) -> ApiService:
    """How the setup's policy serves a lone device of each SLO class with `api`; `hosting.api_refusal` allows it.

    A class without a complete answer is late. Raises ValueError if no class has one.
    """
    found = {own.workload.slo[0].name: _answers(own, outcomes, load_test, api, seed) for own in in_each_class(setup)}
    answers = [one for own in found.values() for one in own]
    if not answers:
        raise ValueError("no answer was completed; set capacity_search.window_s higher, or capacity_search.answers")
    summary = _summary(answers)
    never = {name: 1.0 for name, own in found.items() if not own}
    return replace(summary, violations={**summary.violations, **never})


def _answers(setup: Setup, outcomes: OutcomeSource, load_test: LoadTest, api: HostedApi, seed: int) -> list[_Answer]:
    """The complete answers of a lone device."""
    recorders, observers = list[Recorder](), list[ApiCallObserver]()

    def observe(topology: Topology, begin_s: float, end_s: float) -> Sequence[Observer]:  # noqa: ARG001
        recorders[:] = [Recorder(topology.devices)]
        observers[:] = [ApiCallObserver(frozenset(topology.workers))]
        return [*recorders, *observers]

    run = simulate_load(setup, outcomes, load_test, 1, seed, observe=observe)
    records, calls = recorders[0].records, observers[0].calls
    radio_j = radio_j_by_session(list(records.values()), run.topology)
    return [
        _Answer(run.evaluator.slo_class(session), record, calls.get(session, ()), api, run.topology, radio_j[session])
        for session, record in records.items()
        if session in run.observer.answers and record.ending == "complete"
    ]


def _summary(answers: Sequence[_Answer]) -> ApiService:
    every = [call for answer in answers for call in answer.calls]
    tokens, number = sum(len(answer.record.tokens) for answer in answers), len(answers)
    return ApiService(
        answers=number,
        tokens=tokens / number,
        calls=len(every) / number,
        input_tokens=sum(call.input_tokens for call in every) / number,
        output_tokens=sum(call.output_tokens for call in every) / number,
        ttft_s=fmean(answer.ttft_s for answer in answers),
        tokens_per_s=fmean(answer.tokens_per_s for answer in answers),
        violations=_late_shares(answers),
        device_j_per_token=over_tokens([answer.device_j for answer in answers], tokens),
        radio_j_per_token=over_tokens([answer.radio_j for answer in answers], tokens),
    )


def _late_shares(answers: Sequence[_Answer]) -> dict[str, float]:
    by_class: dict[str, list[bool]] = {}
    for answer in answers:
        by_class.setdefault(answer.slo.name, []).append(answer.is_late)
    return {name: sum(late) / len(late) for name, late in by_class.items()}
