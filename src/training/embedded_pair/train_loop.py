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
from training.embedded_pair.initialisation import Start, initialise
from training.embedded_pair.llama import Architecture, Llama
from training.embedded_pair.lm_module import Lesson, Recipe
from training.embedded_pair.packing import Batch, BatchLoader, pack
from training.fitting import machine
from training.fitting.callbacks import CHECKPOINT, Bookmark, Diary
from training.fitting.trainer import Trainer

SAVE_EVERY_STEPS = 50


def take(
    out: Path,
    work: Path,
    progress: Progress,
    corpus: Path,
    architecture: Architecture,
    recipe: Recipe,
    start: Start,
    seed: int,
    trainer: Trainer,
    teacher: Path | None,
) -> None:
    """Train on the corpus, and on the distributions of the checkpoint `teacher` if there is one."""
    words = tokenizer.load(corpus / "tokenizer")
    model = Llama(architecture, _padded(len(words)))
    initialise(model, start, seed)
    lesson = Lesson(model, recipe, trainer.dtype(), llama.load(teacher) if teacher else None)
    diary = Diary(recipe.steps, progress)
    with trainer.using_threads() as threads:
        began = time.process_time()
        loader = BatchLoader(_packed(corpus, "train", recipe), recipe.rows, recipe.steps, seed)
        trainer.fit(lesson, loader, [diary, Bookmark(work, SAVE_EVERY_STEPS)], saved=work / CHECKPOINT)
        cpu_s = time.process_time() - began
        held_out = _validation_loss(lesson, corpus, recipe)
    llama.save(model, words, out)
    report = {
        "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "architecture": asdict(architecture),
        "recipe": asdict(recipe),
        "start": asdict(start),
        "precision": str(trainer.dtype()).removeprefix("torch."),
        "threads": threads,
        "steps_s": sum(diary.seconds),
        "quiet_step_s": diary.quiet_step_s(),
        "cpu_s_since_restart": cpu_s,
        "validation_loss": held_out,
        "losses": [round(loss, 4) for loss in diary.losses],
        "machine": machine.facts(),
    }
    (out / "training.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def _packed(corpus: Path, split: str, recipe: Recipe) -> Batch:
    words, rows = tokenizer.load(corpus / "tokenizer"), corpora.load(corpus, split)
    prompts = tokenizer.prompt_ids(words, [row["prompt"] for row in rows])
    answers = tokenizer.answer_ids(words, [row["reference"] for row in rows])
    return pack(list(zip(prompts, answers, strict=True)), recipe.row_tokens, recipe.prompt_weight)


@torch.no_grad()
def _validation_loss(lesson: Lesson, corpus: Path, recipe: Recipe) -> float:
    """The same loss, on at most eight steps' rows of the validation split."""
    packed = _packed(corpus, "validation", recipe)
    rows = torch.arange(min(len(packed.ids), 8 * recipe.rows))
    return float(lesson.loss(packed.take(rows)))


def _padded(vocab_size: int) -> int:
    """The next multiple of 32: matrix kernels like it."""
    return -(-vocab_size // 32) * 32
