"""Drafters under teacher forcing: what each would have drafted along the target's greedy text.

Each position is predicted from the target's own text, which is what a greedy drafter sees until its first miss: rounds
counted from these hits are those that a session would have, without running one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from serving.core.cached_prefixes import shared_len
from serving.core.draft_tree import accept_greedily
from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.learned.medusa import MedusaHeads
from serving.policy.slots.draft import LookupDraft
from serving.progress import Progress

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import TeacherForcedModel


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and of the target's greedy answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Drafted:
    """What a drafter would have done along one answer of `n` tokens."""

    accepted: tuple[int, ...]
    """(n): how many of the drafts that begin at each token are the answer's."""

    @property
    def num_hits(self) -> int:
        """Tokens that the drafter predicts."""
        return sum(count > 0 for count in self.accepted)

    @property
    def num_rounds(self) -> int:
        """Rounds that write the answer: each takes the accepted drafts and the verdict's own token."""
        rounds = place = 0
        while place < len(self.accepted):
            place += self.accepted[place] + 1
            rounds += 1
        return rounds


class Drafter(Protocol):
    @property
    def weights_share(self) -> float:
        """Bytes of its weights, of those of the target; an embedding that is not the head, too."""
        ...

    def num_forwards(self, gamma: int) -> int:
        """How often it reads its weights for a round of `gamma` drafts."""
        ...

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        """What it does along each answer, with drafts of `gamma` tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelDrafter:
    """A model of its own, or HAT's adapter behind the target's first layers; with `layers` the first layers of a model,
    read off by its head (early exit).

    Raises ValueError for a number of layers that the model does not have, and for one beside an adapter.
    """

    model: Checkpoint
    architecture: Architecture
    target_architecture: Architecture
    layers: int | None = None

    def __post_init__(self) -> None:
        if self.model.adapter is not None and self.layers is not None:
            raise ValueError("drafter.model has an adapter, which says how many layers run; set drafter.layers=null")
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

    def num_forwards(self, gamma: int) -> int:
        return gamma

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        model, found = self._load(), []
        for number, answer in enumerate(answers, 1):
            fed = (*answer.prompt, *answer.tokens)[:-1]
            predicted = model.greedy_tokens(fed, len(answer.prompt), max_tokens=len(fed))
            found.append(Drafted(accepted_drafts(predicted, answer.tokens, gamma)))
            progress(number, len(answers), "answers read")
        return found

    def _load(self) -> TeacherForcedModel:
        from serving.deployment.engine_factory import load_drafter
        from serving.deployment.model_loading import load_tokenizer
        from serving.outcomes.teacher_forcing import TeacherForcedModel

        checkpoint, layers = self.model, self.layers
        model = load_drafter(checkpoint, checkpoint, None, "cpu")
        if layers is not None:
            model = replace(model, layers=model.layers[:layers], sliding_windows=model.sliding_windows[:layers])
        return TeacherForcedModel(model, load_tokenizer(checkpoint, checkpoint)[1])


@dataclass(frozen=True, kw_only=True)
class MedusaDrafter:
    """Medusa heads on the target: a tree of candidates, whatever the number of drafts asked for."""

    model: Checkpoint
    """The target."""
    medusa: MedusaHeads
    target_architecture: Architecture

    @property
    def weights_share(self) -> float:
        """The heads' alone: the hidden state that they read is the verification's."""
        return 2 * self.medusa.num_parameters / self.target_architecture.weights_nbytes("fp16")

    def num_forwards(self, gamma: int) -> int:  # noqa: ARG002 - all candidates at once
        return 1

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:  # noqa: ARG002
        from serving.deployment.model_loading import load_tokenizer
        from serving.engines.torch.draft_heads import load_medusa_heads
        from serving.engines.torch.model import load_model
        from serving.outcomes.teacher_forcing import TeacherForcedModel

        checkpoint, found = self.model, list[Drafted]()
        target = load_model(checkpoint.name_or_path, dtype=checkpoint.dtype, quantization=checkpoint.quantization)
        vocabulary = load_tokenizer(checkpoint, checkpoint)[1]
        proposer = load_medusa_heads(target, self.medusa, vocabulary)
        model = TeacherForcedModel(target, vocabulary)
        for number, answer in enumerate(answers, 1):
            # The target has not run the last known token yet, which is its own: heads read the state before it.
            fed = (*answer.prompt, *answer.tokens)[:-2]
            trees = model.proposals(fed, len(answer.prompt) - 1, proposer)
            found.append(Drafted(accepted_nodes(trees, self.medusa.parents, answer.tokens)))
            progress(number, len(answers), "answers read")
        return found


@dataclass(frozen=True, kw_only=True)
class LookupDrafter:
    """Drafts that are read off the text, without a model."""

    draft: LookupDraft
    weights_share: float = 0.0

    def num_forwards(self, gamma: int) -> int:
        return gamma

    def along(self, answers: Sequence[Answer], gamma: int, progress: Progress) -> list[Drafted]:
        progress(len(answers), len(answers), "answers read")
        return [Drafted(tuple(self._accepted(answer, gamma))) for answer in answers]

    def _accepted(self, answer: Answer, gamma: int) -> Iterator[int]:
        text = [*answer.prompt, *answer.tokens]
        for place in range(len(answer.tokens)):
            found = self.draft.matches(text[: len(answer.prompt) + place], min(gamma, self.draft.k))
            yield shared_len(next(found, ()), answer.tokens[place:])


def accepted_nodes(trees: Sequence[Sequence[int]], parents: tuple[int, ...], tokens: Sequence[int]) -> tuple[int, ...]:
    """(n): how long a path of the tree that is proposed at each of `n` tokens the answer takes; node 0 may be that
    token.
    """
    ended = (*tokens, -1)

    def accepted(place: int, tree: Sequence[int]) -> int:
        return accept_greedily(tree, parents, lambda path: ended[min(place + len(path), len(tokens))]).accepted

    return tuple(accepted(place, tree) for place, tree in enumerate(trees))


def accepted_drafts(predicted: Sequence[int], tokens: Sequence[int], gamma: int) -> tuple[int, ...]:
    """(n): how many of `gamma` drafts from each of `n` tokens on are the answer's, where each token is predicted from
    those before it.
    """
    counts = [0] * (len(tokens) + 1)
    for place in reversed(range(len(tokens))):
        counts[place] = counts[place + 1] + 1 if predicted[place] == tokens[place] else 0
    return tuple(min(count, gamma) for count in counts[:-1])
