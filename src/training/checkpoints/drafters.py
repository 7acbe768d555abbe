"""Drafters under teacher forcing: what each would have drafted along the target's greedy text.

Each position is predicted from the target's own text, which is what a greedy drafter sees until its first miss: rounds
counted from these hits are those that a session would have, without running one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.policy.slots.draft import LookupDraft
from serving.progress import Progress

if TYPE_CHECKING:
    from serving.engines.torch.model_runner import ModelRunner


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and of the target's greedy answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Drafted:
    """What a drafter would have done along one answer of `n` tokens."""

    hits: tuple[bool, ...]
    """(n): True where it predicts the token."""
    rounds: int
    """Rounds of drafts and verdicts that write the answer."""


class Drafter(Protocol):
    @property
    def weights_share(self) -> float:
        """Bytes of its weights, of those of the target; an embedding that is not the head, too."""
        ...

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        """What it does along each answer, with drafts of `gamma` tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelDrafter:
    """A model of its own; with `layers` the first of its layers, read off by its head (early exit).

    Raises ValueError for a number of layers that the model does not have, and for HAT's adapter.
    """

    model: Checkpoint
    architecture: Architecture
    target_architecture: Architecture
    layers: int | None = None

    def __post_init__(self) -> None:
        if self.model.adapter is not None:
            raise ValueError("drafter.model has an adapter, whose drafts are served to be measured: +policy=hat")
        if self.layers is not None and not 0 < self.layers <= self.architecture.layers:
            raise ValueError(
                f"drafter.layers is {self.layers}; {self.architecture.name} has {self.architecture.layers}"
            )

    @property
    def weights_share(self) -> float:
        own = self.architecture.quantized(self.model.quantization)
        if self.layers is not None:
            own = own.part(self.layers, embedding=own.embedding, lm_head=True)
        return own.weights_nbytes("fp16") / self.target_architecture.weights_nbytes("fp16")

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        runner, found = self._runner(), []
        for number, answer in enumerate(answers, 1):
            hits = _hits(runner, answer)
            found.append(Drafted(hits, count_rounds(hits, gamma)))
            progress(number, len(answers), "answers read")
        return found

    def _runner(self) -> ModelRunner:
        from serving.deployment.model_loading import load_models
        from serving.engines.torch.model_runner import ModelRunner

        models = load_models(self.model, self.model)
        engine: Any = models.cloud
        model, layers = engine.model, self.layers
        if layers is not None:
            model = replace(model, layers=model.layers[:layers], sliding_windows=model.sliding_windows[:layers])
        return ModelRunner(model, min(len(models.tokenizer), model.vocab_size))


@dataclass(frozen=True, kw_only=True)
class LookupDrafter:
    """Drafts that are read off the text, without a model."""

    draft: LookupDraft
    weights_share: float = 0.0

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        progress(len(answers), len(answers), "answers read")
        return [self._along(answer, gamma) for answer in answers]

    def _along(self, answer: Answer, gamma: int) -> Drafted:
        text = [*answer.prompt, *answer.tokens]

        def accepted(place: int) -> int:
            position = len(answer.prompt) + place
            found = self.draft.continuation(text[:position], min(gamma, self.draft.k))
            return shared_len(found, answer.tokens[place:])

        hits = tuple(accepted(place) > 0 for place in range(len(answer.tokens)))
        rounds = place = 0
        while place < len(answer.tokens):
            place += accepted(place) + 1
            rounds += 1
        return Drafted(hits, rounds)


def shared_len(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    same = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return min(len(one), len(other)) if same is None else same


def count_rounds(hits: Sequence[bool], gamma: int) -> int:
    """Rounds that write an answer: each takes the hits in a row, `gamma` at most, and the verdict's own token."""
    rounds = place = 0
    while place < len(hits):
        ahead = hits[place : place + gamma]
        place += (ahead.index(False) if False in ahead else len(ahead)) + 1
        rounds += 1
    return rounds


def _hits(runner: ModelRunner, answer: Answer) -> tuple[bool, ...]:
    import torch

    from serving.engines.torch.model_runner import RunnerInput
    from serving.engines.torch.sequence_cache import SequenceCache

    fed, depth = (*answer.prompt, *answer.tokens)[:-1], len(runner.model.layers)
    with torch.inference_mode():
        cache = SequenceCache(runner.model, 0, depth)
        hidden = runner.run(runner.embed(fed), [RunnerInput(cache, len(fed))], 0, depth)
        likeliest = runner.logits(hidden[len(answer.prompt) - 1 :]).argmax(-1).cpu()
    return tuple((likeliest == torch.tensor(answer.tokens)).tolist())
