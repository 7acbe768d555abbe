"""Co-LLM: a latent Z_t says who writes token t; its head is learned from the marginal likelihood (section 2.2)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from training.wisp.data import Batch
from training.wisp.module import VALIDATION


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
