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

from serving.learned.dispatch_network import DispatchNetwork
from serving.policy.slots.dispatch import LearnedDispatch
from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT_FILE, Checkpointer, StepHistory
from training.fitting.trainer import Trainer
from training.hyperion.environment import DispatchEnvironment, Episode
from training.hyperion.network import TrainableDispatchNetwork
from training.hyperion.reinforce import ReinforceModule, ReinforceRecipe, StepLoader
from training.hyperion.serving_eval import mean_normalised_latency


class WeightAveraging(Callback):
    """Averages the weights after every step, and plays the held-out episodes every so many and at the last one; both
    survive a restart.
    """

    def __init__(self, network: TrainableDispatchNetwork, held_out: Sequence[Episode], recipe: ReinforceRecipe) -> None:
        self.latencies: list[float] = []
        self._average, self._held_out, self._recipe = copy.deepcopy(network), held_out, recipe
        self._best_weights: dict[str, Any] = {}

    @property
    def best_step(self) -> int:
        """After how many steps it was best."""
        look = self.latencies.index(min(self.latencies)) + 1
        return min(self._recipe.steps, look * self._recipe.eval_steps)

    def best_network(self) -> TrainableDispatchNetwork:
        """With the best weights."""
        found = copy.deepcopy(self._average)
        found.load_state_dict(self._best_weights)
        return found

    def on_train_batch_end(self, trainer: LightningTrainer, module: ReinforceModule, *_: Any) -> None:  # type: ignore[override]
        step = trainer.global_step
        self._update_average(module.network, min(self._recipe.ema_decay, step / (step + 10)))
        if step % self._recipe.eval_steps == 0 or step == self._recipe.steps:
            self.latencies.append(mean_normalised_latency(LearnedDispatch(self._average.export()), self._held_out))
            if self.latencies[-1] == min(self.latencies):
                self._best_weights = copy.deepcopy(self._average.state_dict())

    @torch.no_grad()
    def _update_average(self, network: TrainableDispatchNetwork, decay: float) -> None:
        """The first steps' weights are forgotten sooner."""
        for mean, new in zip(self._average.parameters(), network.parameters(), strict=True):
            mean.lerp_(new.to(mean.device), 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {"latencies": list(self.latencies), "weights": self._best_weights, "average": self._average.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.latencies, self._best_weights = list(state_dict["latencies"]), state_dict["weights"]
        self._average.load_state_dict(state_dict["average"])


SAVE_EVERY_STEPS = 8


def train(
    environment: DispatchEnvironment, recipe: ReinforceRecipe, seed: int, trainer: Trainer, work: Path, progress: Progress
) -> DispatchNetwork:  # fmt: skip
    """The same seed gives the same weights on one machine, with an interruption or without."""
    trainer = replace(trainer, threads=1)  # more only wait for each other on a network of this size
    diary = StepHistory(recipe.steps, progress)
    with torch.random.fork_rng(devices=[]), trainer.using_threads():
        torch.manual_seed(seed)
        study = ReinforceModule(TrainableDispatchNetwork(recipe.hidden_size), environment, recipe, seed)
        best = WeightAveraging(
            study.network, sample_episodes(environment, seed, "held out", recipe.validation_episodes), recipe
        )
        callbacks = [diary, best, Checkpointer(work, SAVE_EVERY_STEPS)]
        trainer.fit(study, StepLoader(recipe.steps), callbacks, checkpoint=work / CHECKPOINT_FILE)
    metrics = {
        "recipe": asdict(recipe),
        "best_step": best.best_step,
        "held_out_latencies": [round(each, 5) for each in best.latencies],
        "training_s": sum(diary.step_times_s),
    }
    return replace(best.best_network().export(), metrics=metrics)


def sample_episodes(environment: DispatchEnvironment, seed: int, name: str, count: int) -> list[Episode]:
    """So many of that name, which share none with another name's."""
    return [environment.sample_episode(seed, f"{name} {i}") for i in range(count)]
