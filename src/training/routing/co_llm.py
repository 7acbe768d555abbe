"""Trains Co-LLM's deferral: weak supervision, then the marginal likelihood, with the small model frozen or not.

Co-LLM: a latent Z_t says who writes token t; its head is learned from the marginal likelihood (section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from serving.learned.mlp import Perceptron
from serving.learned.router import Router
from serving.progress import Progress
from training.fitting.trainer import Trainer
from training.routing.citer import Recipe, made
from training.routing.states import Split, States
from training.wisp.mlp import AFRESH, layers
from training.wisp.module import VALIDATION, Batch, Best, Standard, TokenData


def marginal(logit: Tensor, small: Tensor, large: Tensor) -> Tensor:
    """-log P(x_t), where P(x_t) = P(Z_t = 0) P_small(x_t) + P(Z_t = 1) P_large(x_t); shapes are (n).

    `logit` is Z_t's, `small` and `large` are log-probabilities of the true token.
    """
    return -torch.logaddexp(functional.logsigmoid(-logit) + small, functional.logsigmoid(logit) + large)


def weak_labels(small: Tensor, large: Tensor) -> Tensor:
    """Pseudo-labels of Z_t: does the large model predict the true token better? (n), 0 or 1."""
    return (large > small).float()


class Deferral(LightningModule):
    """The head of Z_t over frozen hidden states: (hidden, small, large) log-probabilities of true tokens.

    With `weak` it learns the pseudo-labels, which is the initialisation, else the marginal likelihood.
    """

    def __init__(self, head: nn.Sequential, rate: float, weak: bool) -> None:
        super().__init__()
        self.head, self._rate, self._weak = head, rate, weak

    def loss(self, batch: Batch) -> Tensor:
        hidden, small, large = batch
        logit = self.head(hidden)[:, 0]
        if self._weak:
            return functional.binary_cross_entropy_with_logits(logit, weak_labels(small, large))
        return marginal(logit, small, large).mean()

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log(VALIDATION, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.head.parameters(), lr=self._rate)


class Joint(LightningModule):
    """The head and the small model together: batches of padded texts with the large model's log-probabilities.

    A batch is (tokens, mask, large): (texts, length) each; `mask` marks the positions whose next token is the answer's,
    `large` is that token's log-probability there. The head reads hidden states as `mean` and `deviation` standardise
    them; of the model's own head the first `vocabulary` rows are tokens.
    """

    def __init__(
        self, model: Any, head: nn.Sequential, mean: Tensor, deviation: Tensor, rate: float, vocabulary: int
    ) -> None:
        super().__init__()
        self.model, self.head, self._rate, self._vocabulary = model, head, rate, vocabulary
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def loss(self, batch: Batch) -> Tensor:
        tokens, mask, large = batch
        output = self.model(tokens, output_hidden_states=True)
        hidden, logits = output.hidden_states[-1][:, :-1], output.logits[:, :-1, : self._vocabulary].float()
        small = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        asked = mask[:, :-1].bool()
        logit = self.head((hidden[asked].float() - self.mean) / self.deviation)[:, 0]
        return marginal(logit, small[asked], large[:, :-1][asked]).mean()

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log(VALIDATION, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self._rate, weight_decay=0.0)


def linear(inputs: int) -> nn.Sequential:
    """Co-LLM's head: one linear map of the hidden state. It begins by deferring as often as not."""
    head = nn.Linear(inputs, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(head)


@dataclass(frozen=True)
class Course:
    recipe: Recipe
    share: float
    """Of the tokens that the threshold eta is to defer."""
    seed: int
    trainer: Trainer
    progress: Progress

    def frozen(self, parts: Split) -> Router:
        """The head alone, over the small model as it is; all states have a truth."""
        standard, head, how = self._head(parts)
        return self._router(head, standard, parts, how)

    def joint(self, parts: Split, model: Any, vocabulary: int) -> Router:
        """The head and `model`, a `transformers` causal LM, which is trained in place. The head learns first.

        Of the model's rows of logits the first `vocabulary` are tokens.
        """
        standard, head, how = self._head(parts)
        lesson = Joint(
            model, head, torch.from_numpy(standard.mean), torch.from_numpy(standard.deviation), self.recipe.joint_rate,
            vocabulary,
        )  # fmt: skip
        recipe, data = self.recipe, [_texts(part) for part in (parts.train, parts.validation)]
        batches = TextData(data[0], data[1], min(recipe.joint_batch, len(data[0])), recipe.joint_epochs, self.seed)
        best = self._fit(lesson, batches, recipe.joint_epochs, "small model and head")
        model.eval()
        anew = [seen(model, part, vocabulary) for part in (parts.train, parts.validation, parts.test)]
        return self._router(lesson.head, standard, Split(*anew), {**how, "joint": _course(best)})

    def _head(self, parts: Split) -> tuple[Standard, nn.Sequential, dict[str, Any]]:
        """The head, by pseudo-labels and then by the marginal likelihood."""
        standard, head, recipe = Standard.of(parts.train.hidden), linear(parts.train.hidden.shape[1]), self.recipe
        learnt, held = (_tensors(part, standard) for part in (parts.train, parts.validation))
        how: dict[str, Any] = {"recipe": asdict(recipe)}
        for name, weak in (("weak", True), ("marginal", False)):
            data = TokenData(learnt, held, min(recipe.batch, len(parts.train)), recipe.epochs, self.seed)
            lesson = Deferral(head, recipe.rate, weak)
            how[name] = _course(self._fit(lesson, data, recipe.epochs, f"head, {name} labels"))
        return standard, head, how

    def _fit(self, lesson: LightningModule, data: Any, epochs: int, note: str) -> Best:
        def noted(done: int, total: int, what: str) -> None:
            self.progress(done, total, f"{note}: {what}")

        best = Best(self.recipe.patience, epochs, noted)
        with torch.random.fork_rng(devices=[]), self.trainer.using_threads():
            torch.manual_seed(self.seed)
            self.trainer.fit(lesson, data, [best], saved=AFRESH)
        best.restore(lesson)
        return best

    def _router(self, head: nn.Sequential, standard: Standard, parts: Split, how: dict[str, Any]) -> Router:
        network = Perceptron(layers(head), standard.mean, standard.deviation)
        return made(network, "co_llm", "above", parts.validation, parts.test, self.share, how)


class TextData(TokenData):
    """Padded texts, a batch of them a step; validation goes by such batches, too."""

    def __init__(self, train: Sequence[Text], validation: Sequence[Text], rows: int, epochs: int, seed: int) -> None:
        super().__init__(_padded(train), _padded(validation), rows, epochs, seed)
        self._held = Parts(validation, rows)

    def val_dataloader(self) -> Any:
        return self._held


class Parts:
    """All texts once, `size` of them at a time."""

    def __init__(self, texts: Sequence[Text], size: int) -> None:
        self._texts, self._size = texts, size

    def __len__(self) -> int:
        return -(-len(self._texts) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        for at in range(0, len(self._texts), self._size):
            yield _padded(self._texts[at : at + self._size])


Text = tuple[list[int], list[int], list[float]]
"""Tokens; per position 1 where its next token is the answer's; and the large model's log-probability of that."""


def _texts(states: States) -> list[Text]:
    """The texts that have states, whole."""
    found = []
    for number in np.unique(states.text).tolist():
        path, prompt = states.path(number)
        odds = states.large_odds[states.text == number].tolist()
        before, behind = prompt - 1, len(path) - prompt + 1 - len(odds)
        found.append((path, [0] * before + [1] * len(odds) + [0] * behind, [0.0] * before + odds + [0.0] * behind))
    return found


def _padded(texts: Sequence[Text]) -> Batch:
    """Padding stands behind, where a causal model does not see it."""
    width = max(len(text[0]) for text in texts)
    columns = [[row + [0] * (width - len(row)) for row in rows] for rows in zip(*texts, strict=True)]
    tokens, mask, odds = columns
    return torch.tensor(tokens), torch.tensor(mask), torch.tensor(odds)


def _tensors(states: States, standard: Standard) -> Batch:
    odds = (torch.from_numpy(states.small_odds), torch.from_numpy(states.large_odds))
    return standard.tensor(states.hidden), *odds


@torch.no_grad()
def seen(model: Any, states: States, vocabulary: int) -> States:
    """The same states as `model` sees them, where every position of an answer is one: its hidden states, what it gives
    the true tokens, and as preferences Co-LLM's pseudo-labels, since the old ones were of another model.
    """
    hidden, odds = np.empty_like(states.hidden), np.empty_like(states.small_odds)
    for number in np.unique(states.text).tolist():
        path, prompt = states.path(number)
        rows = states.text == number
        last = prompt - 1 + int(rows.sum())
        output = model(torch.tensor([path]), output_hidden_states=True)
        hidden[rows] = output.hidden_states[-1][0, prompt - 1 : last].float().numpy()
        true = torch.from_numpy(states.truth[rows]).long()[:, None]
        odds[rows] = (
            output.logits[0, prompt - 1 : last, :vocabulary].float().log_softmax(-1).gather(-1, true)[:, 0].numpy()
        )
    return replace(states, hidden=hidden, small_odds=odds, small_preferred=odds >= states.large_odds)


def _course(best: Best) -> dict[str, Any]:
    losses = [round(loss, 5) for loss in best.losses]
    return {"epochs": len(losses), "best_epoch": best.epoch, "validation_losses": losses}
