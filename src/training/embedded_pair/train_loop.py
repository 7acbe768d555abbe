"""One training, from the packed corpus to a checkpoint in Hugging Face format."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from serving.progress import Progress
from training.embedded_pair import corpus as corpora
from training.embedded_pair import llama, tokenizer
from training.embedded_pair.initialisation import InitConfig, initialise
from training.embedded_pair.llama import Llama, LlamaSizes
from training.embedded_pair.lm_module import LMModule, LMRecipe
from training.embedded_pair.packing import PackedLoader, PackedSequences, pack
from training.fitting import machine
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, StepHistory
from training.fitting.trainer import Trainer

SAVE_EVERY_STEPS = 50


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
    """Train on the corpus, and on the distributions of the checkpoint `teacher` if there is one."""
    words = tokenizer.load(corpus / "tokenizer")
    model = Llama(architecture, _padded_vocab_size(len(words)))
    initialise(model, init, seed)
    lesson = LMModule(model, recipe, trainer.dtype(), llama.load(teacher) if teacher else None)
    diary = StepHistory(recipe.steps, progress)
    with trainer.using_threads() as threads:
        began = time.process_time()
        loader = PackedLoader(_packed_split(corpus, "train", recipe), recipe.batch_size, recipe.steps, seed)
        trainer.fit(lesson, loader, [diary, Checkpointer(work, SAVE_EVERY_STEPS)], checkpoint=work / CHECKPOINT_FILE)
        cpu_s = time.process_time() - began
        held_out = _validation_loss(lesson, corpus, recipe)
    llama.save(model, words, out)
    report = {
        "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "architecture": asdict(architecture),
        "recipe": asdict(recipe),
        "init": asdict(init),
        "precision": str(trainer.dtype()).removeprefix("torch."),
        "threads": threads,
        "steps_s": sum(diary.step_times_s),
        "p10_step_s": diary.p10_step_s(),
        "cpu_s_since_restart": cpu_s,
        "validation_loss": held_out,
        "losses": [round(loss, 4) for loss in diary.losses],
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
    """The same loss, on at most eight steps' rows of the validation split."""
    packed = _packed_split(corpus, "validation", recipe)
    rows = torch.arange(min(len(packed.input_ids), 8 * recipe.batch_size))
    return float(module.loss(packed.select(rows)))


def _padded_vocab_size(vocab_size: int) -> int:
    """The next multiple of 32: matrix kernels like it."""
    return -(-vocab_size // 32) * 32
