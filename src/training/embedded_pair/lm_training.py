"""Training of a model of the embedded pair: the loss of one step, and the whole training from corpus to checkpoint."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from serving.progress import Progress
from training.embedded_pair import corpus as corpora
from training.embedded_pair import llama, tokenizer
from training.embedded_pair.initialisation import initialise
from training.embedded_pair.llama import Llama
from training.embedded_pair.model_config import InitConfig, LlamaSizes
from training.embedded_pair.muon import Muon
from training.embedded_pair.packing import PackedLoader, PackedSequences, pack
from training.fitting import machine
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, StepHistory
from training.fitting.recipe import LMRecipe
from training.fitting.trainer import Trainer

SAVE_EVERY_STEPS = 50


class LMModule(LightningModule):
    """Trains `model`. With a teacher, `recipe.distillation_weight` of the loss is the divergence from it."""

    def __init__(self, model: Llama, recipe: LMRecipe, dtype: torch.dtype, teacher: Llama | None = None) -> None:
        super().__init__()
        self.model = model
        self._recipe, self._compute_dtype = recipe, dtype
        # In a tuple, so that the teacher's weights are neither trained nor saved with the module's.
        self._teacher = (teacher,)

    def on_fit_start(self) -> None:
        for teacher in filter(None, self._teacher):
            teacher.to(self.device)

    def on_fit_end(self) -> None:
        for teacher in filter(None, self._teacher):
            teacher.cpu()

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
                teacher_logits = self._logits(self._teacher[0], batch, mask, used)
            loss = (1 - share) * loss + share * _kl_divergence(logits, teacher_logits)
        return (loss * weights).sum()

    def _logits(self, model: Llama, batch: PackedSequences, mask: Tensor, used: Tensor) -> Tensor:
        return model.logits(model.hidden_states(batch.input_ids, mask, self._compute_dtype)[used])

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        matrices = [weight for block in self.model.layers() for weight in block.parameters() if weight.dim() > 1]
        chosen = {id(weight) for weight in matrices}
        others = [weight for weight in self.model.parameters() if id(weight) not in chosen]
        recipe = self._recipe
        optimizer = Muon(
            matrices, others, matrix_lr=recipe.matrix_learning_rate, lr=recipe.learning_rate, dtype=self._compute_dtype
        )
        factor: Callable[[int], float] = recipe.lr_factor
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}


def _kl_divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL divergence from the teacher's distribution for each token."""
    own, theirs = F.log_softmax(logits, -1), F.log_softmax(teacher_logits, -1)
    return F.kl_div(own, theirs, log_target=True, reduction="none").sum(-1)


def train_model(
    out: Path,
    work: Path,
    progress: Progress,
    corpus: Path,
    architecture: LlamaSizes,
    recipe: LMRecipe,
    init: InitConfig,
    seed: int,
    trainer: Trainer,
    teacher: Path | None,
) -> None:
    """Trains on the corpus, and on the distributions of the checkpoint `teacher` if there is one."""
    words = tokenizer.load(corpus / "tokenizer")
    model = Llama(architecture, _padded_vocab_size(len(words)))
    initialise(model, init, seed)
    module = LMModule(model, recipe, trainer.dtype(), llama.load(teacher) if teacher else None)
    history = StepHistory(recipe.steps, progress)
    with trainer.using_threads() as threads:
        began = time.process_time()
        loader = PackedLoader(_packed_split(corpus, "train", recipe), recipe.batch_size, recipe.steps, seed)
        trainer.fit(module, loader, [history, Checkpointer(work, SAVE_EVERY_STEPS)], checkpoint=work / CHECKPOINT_FILE)
        cpu_s = time.process_time() - began
        module.to("cpu")
        held_out = _validation_loss(module, corpus, recipe)
    llama.save(model, words, out)
    report = {
        "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "architecture": asdict(architecture),
        "recipe": asdict(recipe),
        "init": asdict(init),
        "precision": str(trainer.dtype()).removeprefix("torch."),
        "threads": threads,
        "steps_s": sum(history.step_times_s),
        "p10_step_s": history.p10_step_s(),
        "cpu_s_since_restart": cpu_s,
        "validation_loss": held_out,
        "losses": [round(loss, 4) for loss in history.losses],
        "machine": machine.machine_info(),
    }
    (out / "training.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def _packed_split(corpus: Path, split: str, recipe: LMRecipe) -> PackedSequences:
    words, rows = tokenizer.load(corpus / "tokenizer"), corpora.load(corpus, split)
    prompts = tokenizer.prompt_ids(words, [row["prompt"] for row in rows])
    answers = tokenizer.answer_ids(words, [row["reference"] for row in rows])
    return pack(list(zip(prompts, answers, strict=True)), recipe.row_tokens, recipe.prompt_loss_weight)


@torch.no_grad()
def _validation_loss(module: LMModule, corpus: Path, recipe: LMRecipe) -> float:
    """The training loss on the rows of at most eight steps of the validation split."""
    packed = _packed_split(corpus, "validation", recipe)
    rows = torch.arange(min(len(packed.input_ids), 8 * recipe.batch_size))
    return float(module.loss(packed.select(rows)))


def _padded_vocab_size(vocab_size: int) -> int:
    """The next multiple of 32, which matrix kernels compute faster."""
    return -(-vocab_size // 32) * 32
