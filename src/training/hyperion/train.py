"""One training of a dispatcher in simulation: the best weights, and how they came about.

Which weights are served: the moving average that had the least latency on held-out episodes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import Trainer as LightningTrainer

from serving.learned.dispatch_network import Dispatcher
from serving.policy.slots.dispatch import Learned
from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT, Bookmark, Diary
from training.fitting.trainer import Trainer
from training.hyperion.environment import Episode, World
from training.hyperion.network import Network
from training.hyperion.reinforce import Recipe, Steps, Study
from training.hyperion.serving_eval import latency


class Best(Callback):
    """Averages the weights after every step, and plays the held-out episodes every so many and at the last one; both
    survive a restart.
    """

    def __init__(self, network: Network, held_out: Sequence[Episode], recipe: Recipe) -> None:
        self.latencies: list[float] = []
        self._average, self._held_out, self._recipe = copy.deepcopy(network), held_out, recipe
        self._weights: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """After how many steps it was best."""
        look = self.latencies.index(min(self.latencies)) + 1
        return min(self._recipe.steps, look * self._recipe.check_every)

    def network(self) -> Network:
        """With the best weights."""
        found = copy.deepcopy(self._average)
        found.load_state_dict(self._weights)
        return found

    def on_train_batch_end(self, trainer: LightningTrainer, module: Study, *_: Any) -> None:  # type: ignore[override]
        step = trainer.global_step
        self._follow(module.network, min(self._recipe.keep, step / (step + 10)))
        if step % self._recipe.check_every == 0 or step == self._recipe.steps:
            self.latencies.append(latency(Learned(self._average.dispatcher()), self._held_out))
            if self.latencies[-1] == min(self.latencies):
                self._weights = copy.deepcopy(self._average.state_dict())

    @torch.no_grad()
    def _follow(self, network: Network, keep: float) -> None:
        """The first steps' weights are forgotten sooner."""
        for mean, new in zip(self._average.parameters(), network.parameters(), strict=True):
            mean.lerp_(new.to(mean.device), 1 - keep)

    def state_dict(self) -> dict[str, Any]:
        return {"latencies": list(self.latencies), "weights": self._weights, "average": self._average.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.latencies, self._weights = list(state_dict["latencies"]), state_dict["weights"]
        self._average.load_state_dict(state_dict["average"])


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
