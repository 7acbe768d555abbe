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

from serving.learned.mlp import NumpyMLP
from serving.learned.router import TokenRouter
from serving.progress import Progress
from training.fitting.trainer import Trainer
from training.routing.citer import CoLLMRecipe, build_router
from training.routing.states import RoutingSplit, RoutingStates
from training.wisp.mlp import NO_CHECKPOINT, folded_layers
from training.wisp.module import VALIDATION_LOSS, EarlyStoppingByEpoch, StandardScaler, TensorBatch, TensorDataModule


def marginal_nll(logit: Tensor, small_logprobs: Tensor, large_logprobs: Tensor) -> Tensor:
    """-log P(x_t), where P(x_t) = P(Z_t = 0) P_small(x_t) + P(Z_t = 1) P_large(x_t); shapes are (n).

    `logit` is Z_t's, `small_logprobs` and `large_logprobs` are log-probabilities of the true token.
    """
    return -torch.logaddexp(
        functional.logsigmoid(-logit) + small_logprobs, functional.logsigmoid(logit) + large_logprobs
    )


def weak_labels(small_logprobs: Tensor, large_logprobs: Tensor) -> Tensor:
    """Pseudo-labels of Z_t: does the large model predict the true token better? (n), 0 or 1."""
    return (large_logprobs > small_logprobs).float()


class DeferralModule(LightningModule):
    """The head of Z_t over frozen hidden states: (hidden, small, large) log-probabilities of true tokens.

    With `weak` it learns the pseudo-labels, which is the initialisation, else the marginal likelihood.
    """

    def __init__(self, classifier: nn.Sequential, learning_rate: float, use_weak_labels: bool) -> None:
        super().__init__()
        self.classifier, self._learning_rate, self._weak_labels = classifier, learning_rate, use_weak_labels

    def loss(self, batch: TensorBatch) -> Tensor:
        hidden, small, large = batch
        logit = self.classifier(hidden)[:, 0]
        if self._weak_labels:
            return functional.binary_cross_entropy_with_logits(logit, weak_labels(small, large))
        return marginal_nll(logit, small, large).mean()

    def training_step(self, batch: TensorBatch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: TensorBatch, _: int) -> None:
        self.log(VALIDATION_LOSS, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.classifier.parameters(), lr=self._learning_rate)


class JointModule(LightningModule):
    """The head and the small model together: batches of padded texts with the large model's log-probabilities.

    A batch is (tokens, mask, large): (texts, length) each; `mask` marks the positions whose next token is the answer's,
    `large` is that token's log-probability there. The head reads hidden states as `mean` and `std` standardise
    them; of the model's own head the first `vocabulary` rows are tokens.
    """

    def __init__(
        self, model: Any, classifier: nn.Sequential, mean: Tensor, std: Tensor, learning_rate: float, vocabulary: int
    ) -> None:
        super().__init__()
        self.model, self.classifier, self._learning_rate, self._vocabulary = (
            model,
            classifier,
            learning_rate,
            vocabulary,
        )
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def loss(self, batch: TensorBatch) -> Tensor:
        tokens, mask, large = batch
        output = self.model(tokens, output_hidden_states=True)
        hidden, logits = output.hidden_states[-1][:, :-1], output.logits[:, :-1, : self._vocabulary].float()
        small = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        asked = mask[:, :-1].bool()
        logit = self.classifier((hidden[asked].float() - self.mean) / self.std)[:, 0]
        return marginal_nll(logit, small[asked], large[:, :-1][asked]).mean()

    def training_step(self, batch: TensorBatch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: TensorBatch, _: int) -> None:
        self.log(VALIDATION_LOSS, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self._learning_rate, weight_decay=0.0)


def linear_classifier(num_features: int) -> nn.Sequential:
    """Co-LLM's head: one linear map of the hidden state. It begins by deferring as often as not."""
    head = nn.Linear(num_features, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(head)


@dataclass(frozen=True)
class CoLLMTraining:
    recipe: CoLLMRecipe
    routed_share: float
    """Of the tokens that the threshold eta is to defer."""
    seed: int
    trainer: Trainer
    progress: Progress

    def train_frozen(self, split: RoutingSplit) -> TokenRouter:
        """The head alone, over the small model as it is; all states have a truth."""
        standard, head, how = self._train_classifier(split)
        return self._build_router(head, standard, split, how)

    def train_joint(self, split: RoutingSplit, model: Any, vocabulary: int) -> TokenRouter:
        """The head and `model`, a `transformers` causal LM, which is trained in place. The head learns first.

        Of the model's rows of logits the first `vocabulary` are tokens.
        """
        standard, head, how = self._train_classifier(split)
        lesson = JointModule(
            model, head, torch.from_numpy(standard.mean), torch.from_numpy(standard.std), self.recipe.joint_learning_rate,
            vocabulary,
        )  # fmt: skip
        recipe, data = self.recipe, [_labelled_texts(part) for part in (split.train, split.validation)]
        batches = TextDataModule(
            data[0], data[1], min(recipe.joint_batch_size, len(data[0])), recipe.joint_epochs, self.seed
        )
        best = self._fit(lesson, batches, recipe.joint_epochs, "small model and head")
        model.eval()
        anew = [reencode_states(model, part, vocabulary) for part in (split.train, split.validation, split.test)]
        return self._build_router(
            lesson.classifier, standard, RoutingSplit(*anew), {**how, "joint": _loss_summary(best)}
        )

    def _train_classifier(self, split: RoutingSplit) -> tuple[StandardScaler, nn.Sequential, dict[str, Any]]:
        """The head, by pseudo-labels and then by the marginal likelihood."""
        standard, head, recipe = (
            StandardScaler.fit(split.train.hidden),
            linear_classifier(split.train.hidden.shape[1]),
            self.recipe,
        )
        learnt, held = (_state_tensors(part, standard) for part in (split.train, split.validation))
        how: dict[str, Any] = {"recipe": asdict(recipe)}
        for name, weak in (("weak", True), ("marginal", False)):
            data = TensorDataModule(learnt, held, min(recipe.batch_size, len(split.train)), recipe.epochs, self.seed)
            lesson = DeferralModule(head, recipe.learning_rate, weak)
            how[name] = _loss_summary(self._fit(lesson, data, recipe.epochs, f"head, {name} labels"))
        return standard, head, how

    def _fit(self, module: LightningModule, data: Any, epochs: int, note: str) -> EarlyStoppingByEpoch:
        def noted(done: int, total: int, what: str) -> None:
            self.progress(done, total, f"{note}: {what}")

        best = EarlyStoppingByEpoch(self.recipe.patience, epochs, noted)
        with torch.random.fork_rng(devices=[]), self.trainer.using_threads():
            torch.manual_seed(self.seed)
            self.trainer.fit(module, data, [best], checkpoint=NO_CHECKPOINT)
        best.restore_best(module)
        return best

    def _build_router(
        self, classifier: nn.Sequential, scaler: StandardScaler, split: RoutingSplit, training_metrics: dict[str, Any]
    ) -> TokenRouter:
        network = NumpyMLP(folded_layers(classifier), scaler.mean, scaler.std)
        return build_router(
            network, "co_llm", "above", split.validation, split.test, self.routed_share, training_metrics
        )


class TextDataModule(TensorDataModule):
    """Padded texts, a batch of them a step; validation goes by such batches, too."""

    def __init__(
        self, train: Sequence[LabelledText], validation: Sequence[LabelledText], batch_size: int, epochs: int, seed: int
    ) -> None:
        super().__init__(_collate(train), _collate(validation), batch_size, epochs, seed)
        self._validation_texts = TextLoader(validation, batch_size)

    def val_dataloader(self) -> Any:
        return self._validation_texts


class TextLoader:
    """All texts once, `size` of them at a time."""

    def __init__(self, texts: Sequence[LabelledText], batch_size: int) -> None:
        self._texts, self._batch_size = texts, batch_size

    def __len__(self) -> int:
        return -(-len(self._texts) // self._batch_size)

    def __iter__(self) -> Iterator[TensorBatch]:
        for at in range(0, len(self._texts), self._batch_size):
            yield _collate(self._texts[at : at + self._batch_size])


LabelledText = tuple[list[int], list[int], list[float]]
"""Tokens; per position 1 where its next token is the answer's; and the large model's log-probability of that."""


def _labelled_texts(states: RoutingStates) -> list[LabelledText]:
    """The texts that have states, whole."""
    found = []
    for number in np.unique(states.text_index).tolist():
        path, prompt = states.text_tokens(number)
        odds = states.large_logprobs[states.text_index == number].tolist()
        before, behind = prompt - 1, len(path) - prompt + 1 - len(odds)
        found.append((path, [0] * before + [1] * len(odds) + [0] * behind, [0.0] * before + odds + [0.0] * behind))
    return found


def _collate(texts: Sequence[LabelledText]) -> TensorBatch:
    """Padding stands behind, where a causal model does not see it."""
    width = max(len(text[0]) for text in texts)
    columns = [[row + [0] * (width - len(row)) for row in rows] for rows in zip(*texts, strict=True)]
    tokens, mask, odds = columns
    return torch.tensor(tokens), torch.tensor(mask), torch.tensor(odds)


def _state_tensors(states: RoutingStates, scaler: StandardScaler) -> TensorBatch:
    odds = (torch.from_numpy(states.small_logprobs), torch.from_numpy(states.large_logprobs))
    return scaler.transform(states.hidden), *odds


@torch.no_grad()
def reencode_states(model: Any, states: RoutingStates, vocabulary: int) -> RoutingStates:
    """The same states as `model` sees them, where every position of an answer is one: its hidden states, what it gives
    the true tokens, and as preferences Co-LLM's pseudo-labels, since the old ones were of another model.
    """
    hidden, odds = np.empty_like(states.hidden), np.empty_like(states.small_logprobs)
    for number in np.unique(states.text_index).tolist():
        path, prompt = states.text_tokens(number)
        rows = states.text_index == number
        last = prompt - 1 + int(rows.sum())
        output = model(torch.tensor([path]), output_hidden_states=True)
        hidden[rows] = output.hidden_states[-1][0, prompt - 1 : last].float().numpy()
        true = torch.from_numpy(states.reference_token[rows]).long()[:, None]
        odds[rows] = (
            output.logits[0, prompt - 1 : last, :vocabulary].float().log_softmax(-1).gather(-1, true)[:, 0].numpy()
        )
    return replace(states, hidden=hidden, small_logprobs=odds, small_preferred=odds >= states.large_logprobs)


def _loss_summary(best: EarlyStoppingByEpoch) -> dict[str, Any]:
    losses = [round(loss, 5) for loss in best.losses]
    return {"epochs": len(losses), "best_epoch": best.best_epoch, "validation_losses": losses}
