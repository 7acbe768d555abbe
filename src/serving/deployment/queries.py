"""What is asked of a served system, and the models that answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from serving.hardware.executor import Engine
from serving.messages import GenerationRequest, Work
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class Query:
    """One request of the workload, as tokens; `arrival_s` is None in a closed loop, where it follows the device's last
    answer.
    """

    request: GenerationRequest
    prompt: Prompt
    device: int
    arrival_s: float | None
    think_s: float
    slo: SloClass | None


class UnavailableEngine:
    """A model that is not held here: nothing can be run on it."""

    def execute(self, work: Work) -> NoReturn:
        raise RuntimeError(f"this process does not hold the model that {type(work).__name__} needs")

    def drop(self, session: str, first: int | None) -> None:
        """There is nothing to free."""


UNAVAILABLE_ENGINE = UnavailableEngine()


@dataclass(frozen=True)
class LoadedModels:
    """The two models of a pair, opened, with their depths."""

    device: Engine
    device_layers: int
    cloud: Engine
    cloud_layers: int
    tokenizer: "Tokenizer"
    device_target: Engine = UNAVAILABLE_ENGINE
    """What runs the part of the large model that a placement puts on devices."""
    notes: Callable[[], tuple[str, ...]] = tuple
    """What a reader of the figures must know, asked when all is served."""
    new_cloud_engine: Callable[[], Engine] | None = None
    """Runs the large model for a further node: the same weights, with caches of its own; None: all nodes share one."""
    close: Callable[[], object] = tuple
    """Ends the processes that a model shares its weights with, if it does."""
