"""What one training step computes: next-token loss on answers, alone or beside a teacher's distribution.

How long and how fast a model learns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from training.embedded_pair.llama import Llama
from training.embedded_pair.muon import Muon
from training.embedded_pair.packing import PackedSequences


@dataclass(frozen=True)
class LMRecipe:
    """One training; every field changes what is learnt."""

    steps: int
    batch_size: int = 16
    """Packed rows a step."""
    row_tokens: int = 128
    learning_rate: float = 1.5e-3
    """Peak learning rate of embeddings and norms (AdamW)."""
    matrix_learning_rate: float = 0.02
    """Peak learning rate of matrices (Muon)."""
    warmup_steps: int = 20
    stable_share: float = 0.4
    """Share of the steps before the rate begins to fall, linearly, to a fiftieth."""
    prompt_loss_weight: float = 0.2
    """Weight of a prompt's token in the loss; an answer's weighs 1."""
    distillation_weight: float = 0.0
    """Share of the loss that compares with the teacher's distribution, the rest with the corpus's token."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "row_tokens", "learning_rate", "matrix_learning_rate", "warmup_steps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"recipe.{name} must be above 0, got {getattr(self, name)}")
        for name in ("stable_share", "prompt_loss_weight", "distillation_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"recipe.{name} must be between 0 and 1, got {getattr(self, name)}")

    def lr_factor(self, step: int) -> float:
        """Share of the peak learning rate at `step`: a linear rise, flat, a linear fall."""
        rise = min(1.0, (step + 1) / self.warmup_steps)
        falling = (1 - step / self.steps) / max(1 - self.stable_share, 1e-9)
        return rise * min(1.0, max(0.02, falling))


class LMModule(LightningModule):
    """Trains `model` by `recipe`; with a teacher, `recipe.distillation_weight` of the loss is its divergence from it."""

    def __init__(self, model: Llama, recipe: LMRecipe, dtype: torch.dtype, teacher: Llama | None = None) -> None:
        super().__init__()
        self.model = model
        self._recipe, self._compute_dtype = recipe, dtype
        # In a tuple, so that the teacher's weights are neither trained nor saved with the module's.
        self._teacher = (teacher,)

    def on_fit_start(self) -> None:
        for teacher in filter(None, self._teacher):
            teacher.to(self.device)

    def training_step(self, batch: PackedSequences) -> Tensor:
        return self.loss(batch)

    def loss(self, batch: PackedSequences) -> Tensor:
        """Weighted mean over the tokens that have a weight."""
        mask, used = batch.attention_mask(), batch.loss_weights > 0
        weights = batch.loss_weights[used] / batch.loss_weights.sum()
        logits = self._logits(self.model, batch, mask, used)
        loss = F.cross_entropy(logits, batch.labels[used], reduction="none")
        share = self._recipe.distillation_weight
        if self._teacher[0] is not None and share:
            with torch.no_grad():
                taught = self._logits(self._teacher[0], batch, mask, used)
            loss = (1 - share) * loss + share * _kl_divergence(logits, taught)
        return (loss * weights).sum()

    def _logits(self, model: Llama, batch: PackedSequences, mask: Tensor, used: Tensor) -> Tensor:
        return model.logits(model.hidden_states(batch.input_ids, mask, self._compute_dtype)[used])

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        matrices = [weight for block in self.model.layers() for weight in block.parameters() if weight.dim() > 1]
        chosen = {id(weight) for weight in matrices}
        others = [weight for weight in self.model.parameters() if id(weight) not in chosen]
        optimizer = Muon(matrices, others, matrix_lr=self._recipe.matrix_learning_rate, lr=self._recipe.learning_rate)
        factor: Callable[[int], float] = self._recipe.lr_factor
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}


def _kl_divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL divergence from the teacher's distribution for each token."""
    own, theirs = F.log_softmax(logits, -1), F.log_softmax(teacher_logits, -1)
    return F.kl_div(own, theirs, log_target=True, reduction="none").sum(-1)
