"""One training beside a frozen target: padded batches of whole texts, AdamW, and the best weights by held-out loss."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, distributed, nn
from torch.optim.lr_scheduler import LambdaLR

from serving.progress import Progress
from training.fitting.batches import ResumableLoader, shuffled_indices
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, EarlyStoppingByStep, StepHistory
from training.fitting.recipe import HATRecipe
from training.fitting.trainer import Trainer
from training.hat.trace import HiddenStateTrace, TextSplit

SAVE_EVERY_STEPS = 100


@dataclass(frozen=True)
class HiddenStateBatch:
    """`b` texts, padded at their ends to `n` tokens."""

    shallow: Tensor
    """(b, n, hidden)"""
    deep: Tensor
    """(b, n, hidden)"""
    tokens: Tensor
    """(b, n); -1: padding."""
    loss_weights: Tensor
    """(b, n): weight of each position, 1 in all; 0 where no token follows. Position i predicts token i + 1."""

    def to(self, device: torch.device) -> "HiddenStateBatch":
        return HiddenStateBatch(
            *(each.to(device) for each in (self.shallow, self.deep, self.tokens, self.loss_weights))
        )

    def shard(self, rank: int, world_size: int) -> "HiddenStateBatch":
        """Every `world_size`-th text. The mean of the shards' weighted sums is the weighted sum of the batch."""
        mine = slice(rank, None, world_size)
        return HiddenStateBatch(
            self.shallow[mine], self.deep[mine], self.tokens[mine], self.loss_weights[mine] * world_size
        )


def collate(trace: HiddenStateTrace, texts: Sequence[int], prompt_loss_weight: float) -> HiddenStateBatch:
    """A batch of these texts. Positions that predict an answer's token weigh 1, others `prompt_loss_weight`."""
    spans = [trace.span(text) for text in texts]
    shape = (len(texts), max(end - begin for begin, end in spans))
    width = trace.deep.shape[1]
    shallow, deep = torch.zeros(*shape, width), torch.zeros(*shape, width)
    tokens, weights = torch.full(shape, -1), torch.zeros(shape)
    for row, (text, (begin, end)) in enumerate(zip(texts, spans, strict=True)):
        n, prompt = end - begin, int(trace.prompt_lens[text])
        shallow[row, :n], deep[row, :n] = trace.shallow[begin:end].float(), trace.deep[begin:end].float()
        tokens[row, :n] = trace.tokens[begin:end].long()
        weights[row, : prompt - 1] = prompt_loss_weight
        weights[row, prompt - 1 : n - 1] = 1.0
    return HiddenStateBatch(shallow, deep, tokens, weights / weights.sum().clamp_min(1e-9))


class HiddenStateLoader(ResumableLoader[HiddenStateBatch]):
    """Batches of `batch_size` texts, every epoch in its own seeded order."""

    def __init__(
        self,
        trace: HiddenStateTrace,
        texts: Sequence[int],
        batch_size: int,
        steps: int,
        prompt_loss_weight: float,
        seed: int,
    ) -> None:
        super().__init__(steps)
        self._trace, self._texts, self._batch_size = trace, texts, min(batch_size, len(texts))
        self._prompt_loss_weight, self._seed = prompt_loss_weight, seed

    def batch(self, step: int) -> HiddenStateBatch:
        return collate(self._trace, self._batch_texts(step), self._prompt_loss_weight)

    def _batch_texts(self, step: int) -> list[int]:
        indices = shuffled_indices(step, len(self._texts), self._batch_size, self._seed)
        return [self._texts[i] for i in indices.tolist()]


class FrozenTargetModule(LightningModule):
    """Base class: trains `trained_module` by AdamW with a warm-up and a cosine; subclasses define the loss.

    The modules in `frozen` are moved to the device of the trained one.
    """

    def __init__(self, trained_module: nn.Module, frozen: tuple[nn.Module, ...], recipe: HATRecipe) -> None:
        super().__init__()
        self.trained_module = trained_module
        self._recipe = recipe
        # In a tuple, so that the target's weights are neither trained nor saved with the module's.
        self._frozen = frozen

    def on_fit_start(self) -> None:
        for module in self._frozen:
            module.to(self.device)

    def on_fit_end(self) -> None:
        for module in self._frozen:
            module.cpu()

    def loss(self, batch: HiddenStateBatch) -> Tensor:
        """The weighted mean over a batch's positions."""
        raise NotImplementedError

    def top1_agreement(self, batch: HiddenStateBatch) -> list[float]:
        """Weighted share of positions where the trained module predicts the target's token; one share for each head."""
        raise NotImplementedError

    def training_step(self, batch: HiddenStateBatch, _: int) -> Tensor:
        return self.loss(_rank_shard(batch))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        recipe = self._recipe
        optimizer = torch.optim.AdamW(
            self.trained_module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, recipe.lr_factor), "interval": "step"},
        }


def _rank_shard(batch: HiddenStateBatch) -> HiddenStateBatch:
    """This process's part of a batch if several processes train together, else the batch."""
    if distributed.is_available() and distributed.is_initialized():
        return batch.shard(distributed.get_rank(), distributed.get_world_size())
    return batch


def train(
    module: FrozenTargetModule,
    trace: HiddenStateTrace,
    split: TextSplit,
    recipe: HATRecipe,
    seed: int,
    trainer: Trainer,
    work: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains `module`, loads its best weights, and returns a report of the training.

    Held-out loss and agreement count positions of answers only. The same seed gives the same weights on one machine,
    interrupted or not.
    """
    loader = HiddenStateLoader(trace, split.train, recipe.batch_size, recipe.steps, recipe.prompt_loss_weight, seed)
    history = StepHistory(recipe.steps, progress)
    held_out = collate(trace, split.validation, 0.0)
    best = EarlyStoppingByStep(held_out, recipe.eval_steps, recipe.steps, recipe.patience)
    with trainer.using_threads() as threads:
        callbacks = [history, best, Checkpointer(work, SAVE_EVERY_STEPS)]
        trainer.fit(module, loader, callbacks, checkpoint=work / CHECKPOINT_FILE)
        best.restore_best(module.trained_module)
        module.eval().to("cpu")
        agreement = module.top1_agreement(collate(trace, split.test, 0.0))
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "texts": {name: len(part) for name, part in split._asdict().items()},
        "parameters": sum(weight.numel() for weight in module.trained_module.parameters()),
        "steps": len(history.losses),
        "best_step": best.best_step,
        "validation_losses": [round(loss, 5) for loss in best.values],
        "test_agreement": agreement,
        "training_s": sum(history.step_times_s),
        "p10_step_s": history.p10_step_s(),
        "threads": threads,
    }
