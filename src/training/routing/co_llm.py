"""Co-LLM's deferral: a latent Z_t says which model writes token t (section 2.2).

Its classifier is trained on pseudo-labels, then by the marginal likelihood, with the small model frozen or not.
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
from training.fitting.batches import TensorBatch, TensorDataModule
from training.fitting.callbacks import VALIDATION_LOSS, EarlyStoppingByEpoch
from training.fitting.mlp_network import StandardScaler, folded_layers
from training.fitting.recipe import CoLLMRecipe
from training.fitting.trainer import NO_CHECKPOINT, Trainer
from training.routing.citer import build_router
from training.routing.states import RoutingSplit, RoutingStates


def marginal_nll(logit: Tensor, small_logprobs: Tensor, large_logprobs: Tensor) -> Tensor:
    """-log P(x_t), where P(x_t) = P(Z_t = 0) P_small(x_t) + P(Z_t = 1) P_large(x_t); shapes are (n).

    `logit` is Z_t's, `small_logprobs` and `large_logprobs` are log-probabilities of the true token.
    """
    return -torch.logaddexp(
        functional.logsigmoid(-logit) + small_logprobs, functional.logsigmoid(logit) + large_logprobs
    )


def weak_labels(small_logprobs: Tensor, large_logprobs: Tensor) -> Tensor:
    """Pseudo-labels of Z_t (n): 1 where the large model predicts the true token better, else 0."""
    return (large_logprobs > small_logprobs).float()


class DeferralModule(LightningModule):
    """The classifier of Z_t over frozen hidden states. A batch is (hidden, small, large), the latter two being
    log-probabilities of the true tokens.

    With `use_weak_labels` it learns the pseudo-labels, which is the initialisation; else the marginal likelihood.
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
    """Trains the classifier and the small model together on padded texts.

    A batch is (tokens, mask, large), each of shape (texts, length). `mask` marks the positions whose next token is the
    answer's; `large` is the large model's log-probability of that token. The classifier reads hidden states
    standardised by `mean` and `std`. The first `vocabulary` logits of the model are tokens.
    """

    def __init__(
        self, model: Any, classifier: nn.Sequential, mean: Tensor, std: Tensor, learning_rate: float, vocabulary: int
    ) -> None:
        super().__init__()
        self.model, self.classifier = model, classifier
        self._learning_rate, self._vocabulary = learning_rate, vocabulary
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def loss(self, batch: TensorBatch) -> Tensor:
        tokens, mask, large = batch
        output = self.model(tokens, output_hidden_states=True)
        hidden, logits = output.hidden_states[-1][:, :-1], output.logits[:, :-1, : self._vocabulary].float()
        small = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        predicts = mask[:, :-1].bool()
        logit = self.classifier((hidden[predicts].float() - self.mean) / self.std)[:, 0]
        return marginal_nll(logit, small[predicts], large[:, :-1][predicts]).mean()

    def training_step(self, batch: TensorBatch, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: TensorBatch, _: int) -> None:
        self.log(VALIDATION_LOSS, self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self._learning_rate, weight_decay=0.0)


def linear_classifier(num_features: int) -> nn.Sequential:
    """Co-LLM's classifier: one linear map of the hidden state. At first it defers with probability 1/2."""
    head = nn.Linear(num_features, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(head)


@dataclass(frozen=True)
class CoLLMTraining:
    """One training of the deferral."""

    recipe: CoLLMRecipe
    routed_share: float
    """Share of the tokens that the threshold eta defers."""
    seed: int
    trainer: Trainer
    progress: Progress

    def train_frozen(self, split: RoutingSplit) -> TokenRouter:
        """Trains the classifier alone. All states have a true token."""
        scaler, classifier, metrics = self._train_classifier(split)
        return self._build_router(classifier, scaler, split, metrics)

    def train_joint(self, split: RoutingSplit, model: Any, vocabulary: int) -> TokenRouter:
        """Trains the classifier, then it and `model`, a `transformers` causal LM, together; `model` in place.

        The first `vocabulary` logits of the model are tokens.
        """
        scaler, classifier, metrics = self._train_classifier(split)
        recipe, mean, std = self.recipe, torch.from_numpy(scaler.mean), torch.from_numpy(scaler.std)
        module = JointModule(model, classifier, mean, std, recipe.joint_learning_rate, vocabulary)
        train, validation = (_labelled_texts(part) for part in (split.train, split.validation))
        batch_size = min(recipe.joint_batch_size, len(train))
        data = TextDataModule(train, validation, batch_size, recipe.joint_epochs, self.seed)
        best = self._fit(module, data, recipe.joint_epochs, "small model and classifier")
        model.eval()
        parts = [reencode_states(model, part, vocabulary) for part in (split.train, split.validation, split.test)]
        return self._build_router(module.classifier, scaler, RoutingSplit(*parts), {**metrics, "joint": best.summary()})

    def _train_classifier(self, split: RoutingSplit) -> tuple[StandardScaler, nn.Sequential, dict[str, Any]]:
        """Trains the classifier on pseudo-labels, then by the marginal likelihood."""
        recipe, scaler = self.recipe, StandardScaler.fit(split.train.hidden)
        classifier = linear_classifier(split.train.hidden.shape[1])
        train, validation = (_state_tensors(part, scaler) for part in (split.train, split.validation))
        metrics: dict[str, Any] = {"recipe": asdict(recipe)}
        for name, use_weak_labels in (("weak", True), ("marginal", False)):
            batch_size = min(recipe.batch_size, len(split.train))
            data = TensorDataModule(train, validation, batch_size, recipe.epochs, self.seed)
            module = DeferralModule(classifier, recipe.learning_rate, use_weak_labels)
            metrics[name] = self._fit(module, data, recipe.epochs, f"classifier, {name} labels").summary()
        return scaler, classifier, metrics

    def _fit(self, module: LightningModule, data: Any, epochs: int, note: str) -> EarlyStoppingByEpoch:
        def noted(done: int, total: int, losses: str) -> None:
            self.progress(done, total, f"{note}: {losses}")

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
    """Padded texts in batches, for training and for validation."""

    def __init__(
        self, train: Sequence[LabelledText], validation: Sequence[LabelledText], batch_size: int, epochs: int, seed: int
    ) -> None:
        super().__init__(_collate(train), _collate(validation), batch_size, epochs, seed)
        self._validation_texts = TextLoader(validation, batch_size)

    def val_dataloader(self) -> Any:
        return self._validation_texts


class TextLoader:
    """All texts once, in batches of `batch_size`."""

    def __init__(self, texts: Sequence[LabelledText], batch_size: int) -> None:
        self._texts, self._batch_size = texts, batch_size

    def __len__(self) -> int:
        return -(-len(self._texts) // self._batch_size)

    def __iter__(self) -> Iterator[TensorBatch]:
        for at in range(0, len(self._texts), self._batch_size):
            yield _collate(self._texts[at : at + self._batch_size])


LabelledText = tuple[list[int], list[int], list[float]]
"""Tokens; for each position 1 if its next token is the answer's; the large model's log-probability of that token."""


def _labelled_texts(states: RoutingStates) -> list[LabelledText]:
    """The whole texts that have states."""
    found = []
    for number in np.unique(states.text_index).tolist():
        tokens, prompt_len = states.text_tokens(number)
        logprobs = states.large_logprobs[states.text_index == number].tolist()
        before, behind = prompt_len - 1, len(tokens) - prompt_len + 1 - len(logprobs)
        mask = [0] * before + [1] * len(logprobs) + [0] * behind
        found.append((tokens, mask, [0.0] * before + logprobs + [0.0] * behind))
    return found


def _collate(texts: Sequence[LabelledText]) -> TensorBatch:
    """Pads texts at their ends, where a causal model does not see it."""
    width = max(len(text[0]) for text in texts)
    columns = [[row + [0] * (width - len(row)) for row in rows] for rows in zip(*texts, strict=True)]
    tokens, mask, logprobs = columns
    return torch.tensor(tokens), torch.tensor(mask), torch.tensor(logprobs)


def _state_tensors(states: RoutingStates, scaler: StandardScaler) -> TensorBatch:
    small, large = torch.from_numpy(states.small_logprobs), torch.from_numpy(states.large_logprobs)
    return scaler.transform(states.hidden), small, large


@torch.no_grad()
def reencode_states(model: Any, states: RoutingStates, vocabulary: int) -> RoutingStates:
    """The same states as `model` sees them: its hidden states and its log-probabilities of the true tokens.

    Every position of an answer must be a state. Preferences become Co-LLM's pseudo-labels, since the recorded ones are
    another model's.
    """
    hidden, logprobs = np.empty_like(states.hidden), np.empty_like(states.small_logprobs)
    for number in np.unique(states.text_index).tolist():
        tokens, prompt_len = states.text_tokens(number)
        rows = states.text_index == number
        last = prompt_len - 1 + int(rows.sum())
        output = model(torch.tensor([tokens]), output_hidden_states=True)
        hidden[rows] = output.hidden_states[-1][0, prompt_len - 1 : last].float().numpy()
        true = torch.from_numpy(states.reference_token[rows]).long()[:, None]
        logits = output.logits[0, prompt_len - 1 : last, :vocabulary].float()
        logprobs[rows] = logits.log_softmax(-1).gather(-1, true)[:, 0].numpy()
    return replace(states, hidden=hidden, small_logprobs=logprobs, small_preferred=logprobs >= states.large_logprobs)
