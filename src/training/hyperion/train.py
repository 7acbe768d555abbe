"""One training of a dispatcher in simulation: the best weights, and how they came about."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from serving.learned.dispatch_network import Dispatcher
from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT, Bookmark, Diary
from training.fitting.trainer import Trainer
from training.hyperion.best import Best
from training.hyperion.environment import Episode, World
from training.hyperion.network import Network
from training.hyperion.recipe import Recipe
from training.hyperion.reinforce import Steps, Study

SAVE_EVERY_STEPS = 8


def train(
    world: World, recipe: Recipe, seed: int, trainer: Trainer, work: Path, progress: Progress
) -> Dispatcher:  # fmt: skip
    """The same seed gives the same weights on one machine, with an interruption or without."""
    trainer = replace(trainer, threads=1)  # more only wait for each other on a network of this size
    diary = Diary(recipe.steps, progress)
    with torch.random.fork_rng(devices=[]), trainer.using_threads():
        torch.manual_seed(seed)
        study = Study(Network(recipe.hidden), world, recipe, seed)
        best = Best(study.network, episodes(world, seed, "held out", recipe.held_out), recipe)
        callbacks = [diary, best, Bookmark(work, SAVE_EVERY_STEPS)]
        trainer.fit(study, Steps(recipe.steps), callbacks, saved=work / CHECKPOINT)
    metrics = {
        "recipe": asdict(recipe),
        "best_step": best.step,
        "held_out_latencies": [round(each, 5) for each in best.latencies],
        "training_s": sum(diary.seconds),
    }
    return replace(best.network().dispatcher(), metrics=metrics)


def episodes(world: World, seed: int, name: str, count: int) -> list[Episode]:
    """So many of that name, which share none with another name's."""
    return [world.episode(seed, f"{name} {i}") for i in range(count)]
