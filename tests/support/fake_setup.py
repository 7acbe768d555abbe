"""A setup from the conf files' own hardware, with a data set and models that need no file."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from serving.deployment.queries import LoadedModels, Query
from serving.deployment.setup import Setup
from serving.engines.models import ModelConfig, ModelPair
from serving.hardware.latency import ForwardLoad, batch_load
from serving.hardware.testbed import Testbed
from serving.messages import DraftOutcome, DraftWork, GenerationRequest, Outcome, Work
from serving.workload.metrics import ExactMatch, Metric, Rouge1
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload
from tests.support.conf_files import architecture, bed, link
from tests.support.fake_pair import LAYERS, FakePair
from tests.support.policies import policy


@dataclass(frozen=True)
class Questions:
    """A data set of made-up questions."""

    name: ClassVar[str] = "made-up questions"
    metrics: ClassVar[tuple[Metric, ...]] = (ExactMatch(), Rouge1())
    measures_quality_of: ClassVar[Any] = "pretrained"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"p{i}", "Where?", ("In the attic.",), "choice", "attic") for i in range(50)]


@dataclass
class FakeEngine:
    """The fake pair behind the engine's interface: an outcome and what was computed for it."""

    pair: FakePair = field(default_factory=FakePair)

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        outcome, _ = self.pair.execute(work)
        if isinstance(work, DraftWork):
            return outcome, (batch_load(LAYERS, [(work.start, max(1, len(work.input_tokens)))], 1),)
        return outcome, (batch_load(LAYERS, [(rows.start, rows.num_tokens) for rows in work.slices], len(work.slices)),)

    def drop(self, session: str, first: int | None) -> None:
        self.pair.drop(session, first)

    def move(self, session: str, to: str) -> None:
        self.pair.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self.pair.copy(session, to, length)


class StepwiseEngine(FakeEngine):
    """Runs a forward for each token of a draft."""

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        outcome, loads = super().execute(work)
        if isinstance(work, DraftWork) and isinstance(outcome, DraftOutcome):
            loads = (*loads, *[batch_load(LAYERS, [(work.start, 1)], 1)] * (len(outcome.tokens) - 1))
        return outcome, loads


@dataclass
class PoolingEngine(StepwiseEngine):
    """The same, with drafts that advance together, a token a forward."""

    running: list["PooledDraft"] = field(default_factory=list)
    forwards: int = 0
    most: int = 0

    def begin(self, work: DraftWork) -> "PooledDraft":
        self.running.append(PooledDraft(self, *self.execute(work)))
        return self.running[-1]

    def step(self) -> None:
        self.forwards, self.most = self.forwards + 1, max(self.most, len(self.running))
        for draft in self.running:
            draft.num_run += 1
        self.running = [draft for draft in self.running if not draft.done]


@dataclass(eq=False)
class PooledDraft:
    engine: PoolingEngine
    outcome: Outcome
    whole: tuple[ForwardLoad, ...]
    num_run: int = 0

    @property
    def done(self) -> bool:
        return self.num_run == len(self.whole)

    @property
    def loads(self) -> tuple[ForwardLoad, ...]:
        return self.whole[: self.num_run]

    @property
    def next_load(self) -> ForwardLoad:
        return self.whole[self.num_run]

    def advance(self) -> None:
        self.engine.step()

    def finish(self) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        while not self.done:
            self.engine.step()
        return self.outcome, self.whole


class Words:
    """A tokenizer of numbered words."""

    def __len__(self) -> int:
        return 997

    def decode(self, tokens: Any) -> str:
        return " ".join(f"w{t}" for t in tokens)


def pair(device: str = "tinyllama_1_1b", cloud: str = "llama2_13b") -> ModelPair:
    return ModelPair(
        ModelConfig(timed_architecture=architecture(device), hub="a/small"),
        ModelConfig(timed_architecture=architecture(cloud), hub="a/large"),
    )


def setup(name: str = "synera", hardware: str | Testbed = "jetson_orin", devices: int | None = 2, **how: Any) -> Setup:
    limits = {"max_prompt_tokens": 16, "max_new_tokens": 24} | how.pop("limits", {})
    override = how.pop("override", {})
    how.setdefault("pair", pair())
    return Setup(
        hardware=bed(hardware) if isinstance(hardware, str) else hardware,
        network=how.pop("network", link("wifi")),
        workload=Workload(dataset=Questions(), devices=devices, **limits),
        policy=policy(name, **override),
        **how,
    )


def models(alpha: float = 0.7) -> LoadedModels:
    return LoadedModels(FakeEngine(FakePair(alpha)), LAYERS, FakeEngine(FakePair(alpha)), LAYERS, Words())  # type: ignore[arg-type]


def queries(n: int, devices: int = 2, at_s: float | None = None, think_s: float = 0.0, limit: int = 24) -> list[Query]:
    made = Questions().prompts()
    return [
        Query(
            GenerationRequest(f"r{i:05d}", tuple(range(i + 1, i + 13)), limit),
            made[i],
            i % devices,
            at_s,
            think_s,
            None,
        )
        for i in range(n)
    ]
