"""Heals a pruned model: it learns the distributions that the whole model had while it wrote its answers.

The loss is the cross-entropy to the teacher's k largest logits at answers' positions, with a head that is restricted to
the tokens that are most often likely there. Layers before the first that follows another one than before stay as they
are (all but the last if only the last ones are dropped), and so do embedding and head.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from serving.progress import Progress
from training.checkpoints.pruning import load_pruned
from training.checkpoints.self_prompts import SelfPrompts
from training.fitting import machine
from training.fitting.batches import ResumableLoader
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, StepHistory
from training.fitting.held_out import random_split
from training.fitting.recipe import HealingRecipe
from training.fitting.token_subset import TokenSubset
from training.fitting.trainer import Trainer

SAVE_EVERY_STEPS = 25
REPORT_FILE = "pruning.json"

COUNTED_RANKS = 4
"""Ranks of the teacher's tokens by which the head's tokens are chosen."""


@dataclass(frozen=True)
class HealingBatch:
    """Conversations, padded at their ends; `a` positions predict a token of an answer."""

    tokens: Tensor
    """(b, n)"""
    mask: Tensor
    """(b, n): 0 at padding."""
    rows: Tensor
    """(a): places of the predicting positions in the flattened (b, n)."""
    top_tokens: Tensor
    """(a, k): places in the restricted head; -1 for a token that it lacks."""
    top_logits: Tensor
    """(a, k)"""

    def to(self, device: torch.device) -> "HealingBatch":
        parts = (self.tokens, self.mask, self.rows, self.top_tokens, self.top_logits)
        return HealingBatch(*(each.to(device) for each in parts))


class HealingLoader(ResumableLoader[HealingBatch]):
    """Batches of conversations of similar length, about `tokens_per_step` tokens each, in a seeded order."""

    def __init__(
        self, found: SelfPrompts, texts: Sequence[int], head: TokenSubset, tokens_per_step: int, seed: int
    ) -> None:
        self._found, self._spans, self._places = found, found.answer_spans(), head.places
        self._batches = _grouped(found, texts, tokens_per_step, seed)
        super().__init__(len(self._batches))

    def batch(self, step: int) -> HealingBatch:
        return self.collate(self._batches[step])

    def collate(self, texts: Sequence[int]) -> HealingBatch:
        spans = [self._found.span(text) for text in texts]
        shape = (len(texts), max(end - begin for begin, end in spans))
        tokens, mask, rows = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long), []
        for row, (text, (begin, end)) in enumerate(zip(texts, spans, strict=True)):
            tokens[row, : end - begin], mask[row, : end - begin] = self._found.tokens[begin:end].long(), 1
            start = int(self._found.answer_starts[text])
            rows.append(row * shape[1] + torch.arange(start - 1, end - begin - 1))
        answers = torch.cat([torch.arange(*self._spans[text]) for text in texts])
        top = self._places[self._found.top_tokens[answers].long()]
        return HealingBatch(tokens, mask, torch.cat(rows), top, self._found.top_logits[answers].float())


def _grouped(found: SelfPrompts, texts: Sequence[int], tokens_per_step: int, seed: int) -> list[list[int]]:
    def length(text: int) -> int:
        begin, end = found.span(text)
        return end - begin

    groups: list[list[int]] = []
    for text in sorted(texts, key=length):
        if groups and length(text) * (len(groups[-1]) + 1) <= tokens_per_step:
            groups[-1].append(text)
        else:
            groups.append([text])
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    return [groups[place] for place in order]


def head_tokens(found: SelfPrompts, count: int, vocab_size: int) -> TokenSubset:
    """The `count` tokens that are most often among the teacher's likeliest `COUNTED_RANKS`, in their order."""
    often = torch.bincount(found.top_tokens[:, :COUNTED_RANKS].reshape(-1).long(), minlength=vocab_size)
    return TokenSubset(often.topk(min(count, vocab_size)).indices.sort().values, vocab_size)


class HealingModule(LightningModule):
    """Trains the layers of `model` from `first_trained` on, and its last norm."""

    def __init__(
        self, model: Any, first_trained: int, head: TokenSubset, recipe: HealingRecipe, steps: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.model = model.train().requires_grad_(False)
        for module in (*model.model.layers[first_trained:], model.model.norm):
            module.requires_grad_(True)
        self._recipe, self._steps, self._compute_dtype = recipe, steps, dtype
        self._head = (head.head(model.lm_head),)  # in a tuple: checkpoints leave it out

    def training_step(self, batch: HealingBatch) -> Tensor:
        return self.loss(batch)

    def loss(self, batch: HealingBatch) -> Tensor:
        """The mean over the predicting positions."""
        logits, known = self.logits(batch), batch.top_tokens >= 0
        teacher = batch.top_logits.masked_fill(~known, -torch.inf).softmax(-1).nan_to_num()
        own = logits.log_softmax(-1).gather(1, batch.top_tokens.clamp_min(0))
        return -(teacher * own).sum(-1).mean()

    def logits(self, batch: HealingBatch) -> Tensor:
        """(a, tokens of the head), fp32."""
        with torch.autocast(self.device.type, self._compute_dtype, enabled=self._compute_dtype != torch.float32):
            hidden = self.model.model(
                input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False
            ).last_hidden_state
            return F.linear(hidden.flatten(0, 1)[batch.rows], self._head[0].weight.to(hidden.device)).float()

    @torch.no_grad()
    def agreement(self, batch: HealingBatch) -> tuple[int, int]:
        """(positions where the likeliest token is the teacher's, positions)."""
        return int((self.logits(batch).argmax(-1) == batch.top_tokens[:, 0]).sum()), len(batch.rows)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        trained = [weight for weight in self.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self._recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._factor), "interval": "step"},
        }

    def _factor(self, step: int) -> float:
        return self._recipe.lr_factor(step, self._steps)


def heal_pruned(
    out: Path,
    work: Path,
    progress: Progress,
    checkpoint: str,
    layers: Sequence[int],
    found: SelfPrompts,
    recipe: HealingRecipe,
    seed: int,
    trainer: Trainer,
) -> None:
    """Trains the checkpoint with these `layers` alone, and writes it in bf16 with its tokenizer and pruning.json."""
    from transformers import AutoTokenizer

    model = load_pruned(checkpoint, layers)
    split = random_split(
        range(len(found)), (1 - 2 * recipe.held_out_share, recipe.held_out_share, recipe.held_out_share), seed
    )
    head = head_tokens(found, recipe.head_tokens, model.config.vocab_size)
    loader = HealingLoader(found, split.train, head, recipe.tokens_per_step, seed)
    module = HealingModule(model, first_changed(layers), head, recipe, len(loader), trainer.dtype())
    history = StepHistory(len(loader), progress)
    with trainer.using_threads() as threads:
        before = _agreement(module, loader, split.test)
        callbacks = [history, Checkpointer(work, SAVE_EVERY_STEPS)]
        trainer.fit(module, loader, callbacks, checkpoint=work / CHECKPOINT_FILE)
        after = _agreement(module.to("cpu"), loader, split.test)
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(out)
    report = {
        "checkpoint": checkpoint,
        "layers": list(layers),
        "recipe": asdict(recipe),
        "seed": seed,
        "agreement_before": before,
        "agreement": after,
        "trained_parameters": sum(weight.numel() for weight in module.parameters() if weight.requires_grad),
        "training_s": sum(history.step_times_s),
        "losses": [round(loss, 4) for loss in history.losses],
        "threads": threads,
        "machine": machine.machine_info(),
    }
    (out / REPORT_FILE).write_text(json.dumps(report, indent=1), encoding="utf-8")
    metrics = {name: report[name] for name in ("agreement_before", "agreement", "training_s")}
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")


def first_changed(layers: Sequence[int]) -> int:
    """The first of the kept layers that follows another layer than before."""
    return next((place for place, layer in enumerate(layers) if layer != place), len(layers) - 1)


def _agreement(module: HealingModule, loader: HealingLoader, texts: Sequence[int]) -> float:
    """The share of held-out answers' tokens at which the likeliest token of the restricted head is the teacher's."""
    module.model.eval()  # a checkpoint may have dropout
    counts = [module.agreement(loader.collate([text])) for text in texts]
    module.model.train()
    return sum(same for same, _ in counts) / sum(positions for _, positions in counts)
