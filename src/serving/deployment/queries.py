"""The requests of a workload as tokens, and the loaded models that serve them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from serving.hardware.executor import Engine
from serving.messages import INF, GenerationRequest, SamplingParams, TokenIds, Work
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass
from serving.workload.workload import WorkloadRequest

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class Query:
    """One request of the workload, as tokens. `arrival_s` is None in a closed loop, where it follows the device's last
    answer.
    """

    request: GenerationRequest
    prompt: Prompt
    device: int
    arrival_s: float | None
    think_s: float
    slo: SloClass | None
    num_cut: int = 0
    """Tokens that the prompt lost to the workload's limit."""

    @classmethod
    def of(
        cls,
        asked: WorkloadRequest,
        tokens: TokenIds,
        max_new_tokens: int,
        stop_tokens: TokenIds,
        sampling: SamplingParams | None,
        *,
        prompt: Prompt | None = None,
        stop_strings: tuple[str, ...] = (),
        num_cut: int = 0,
    ) -> "Query":
        """The request as these `tokens`, with the promises of its SLO class. `prompt` replaces the workload's."""
        request = GenerationRequest(
            asked.session_name,
            tokens,
            max_new_tokens,
            stop_tokens,
            sampling,
            asked.slo.tokens_per_s if asked.slo else 0.0,
            asked.slo.ttft_s if asked.slo and asked.slo.ttft_s else INF,
            stop_strings=stop_strings,
        )
        return cls(request, prompt or asked.prompt, asked.device, asked.at_s, asked.think_s, asked.slo, num_cut)


class UnavailableEngine:
    """Stands for a model that this process does not hold."""

    def execute(self, work: Work) -> NoReturn:
        raise RuntimeError(f"this process does not hold the model that {type(work).__name__} needs")

    def drop(self, session: str, first: int | None) -> None:
        """There is nothing to free."""

    def move(self, session: str, to: str) -> None:
        """There is nothing to move."""

    def copy(self, session: str, to: str, length: int) -> None:
        """There is nothing to copy."""


UNAVAILABLE_ENGINE = UnavailableEngine()


@dataclass(frozen=True)
class LoadedModels:
    """The two loaded models of a pair, and their numbers of layers."""

    device: Engine
    device_layers: int
    cloud: Engine
    cloud_layers: int
    tokenizer: "Tokenizer"
    device_target: Engine = UNAVAILABLE_ENGINE
    """Runs the part of the large model that a placement puts on devices."""
    notes: Callable[[], tuple[str, ...]] = tuple
    """Remarks for readers of the results; called when all requests are served."""
    new_cloud_engine: Callable[[], Engine] | None = None
    """Makes an engine for a further node: the same weights, its own caches; None: all nodes share one engine."""
    new_device_engine: Callable[[], Engine] | None = None
    """As `new_cloud_engine`: makes a drafting engine for a further node of the cloud."""
    hidden_size: int | None = None
    """Width of the large model's hidden states; None: unknown."""
    stop: Callable[[], object] = tuple
    """Lets work under way fail soon where a server is asked again and again; called before its thread is waited for."""
    close: Callable[[], object] = tuple
    """Stops the processes of a tensor-parallel model, or closes the connections to a server, if there are any."""
