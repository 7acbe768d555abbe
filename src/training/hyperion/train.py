"""One training of the dispatch network in simulation.

The weights that are served are the moving average with the lowest latency on validation episodes.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer as LightningTrainer

from serving.learned.dispatch_network import DispatchNetwork
from serving.policy.slots.dispatch import LearnedDispatch
from serving.progress import Progress
from training.fitting.callbacks import CHECKPOINT_FILE, BestWeightsByStep, Checkpointer, StepHistory
from training.fitting.recipe import ReinforceRecipe
from training.fitting.trainer import Trainer
from training.hyperion.environment import DispatchEnvironment, Episode
from training.hyperion.reinforce import ReinforceModule, StepLoader, TrainableDispatchNetwork
from training.hyperion.serving_eval import mean_normalised_latency


class WeightAveraging(BestWeightsByStep):
    """Averages the weights after every step, and evaluates the average on the held-out episodes. It survives a restart
    as the best weights do.
    """

    def __init__(self, network: TrainableDispatchNetwork, held_out: Sequence[Episode], recipe: ReinforceRecipe) -> None:
        super().__init__(recipe.eval_steps, recipe.steps)
        self._average, self._held_out, self._ema_decay = copy.deepcopy(network), held_out, recipe.ema_decay

    def best_network(self) -> TrainableDispatchNetwork:
        """A network with the best weights."""
        found = copy.deepcopy(self._average)
        self.restore_best(found)
        return found

    def on_train_batch_end(self, trainer: LightningTrainer, module: ReinforceModule, *_: Any) -> None:  # type: ignore[override]
        step = trainer.global_step
        self._update_average(module.network, min(self._ema_decay, step / (step + 10)))
        if self.is_evaluated(step):
            self.add(mean_normalised_latency(LearnedDispatch(self._average.export()), self._held_out), self._average)

    @torch.no_grad()
    def _update_average(self, network: TrainableDispatchNetwork, decay: float) -> None:
        """The decay is lower in the first steps, whose weights matter least."""
        for mean, new in zip(self._average.parameters(), network.parameters(), strict=True):
            mean.lerp_(new.to(mean.device), 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self._average.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._average.load_state_dict(state_dict["average"])


SAVE_EVERY_STEPS = 8


def train(
    environment: DispatchEnvironment,
    recipe: ReinforceRecipe,
    seed: int,
    trainer: Trainer,
    work: Path,
    progress: Progress,
) -> DispatchNetwork:
    """The same seed gives the same weights on one machine, interrupted or not."""
    trainer = replace(trainer, threads=1)  # more threads only wait for each other on a network of this size
    history = StepHistory(recipe.steps, progress)
    with torch.random.fork_rng(devices=[]), trainer.using_threads():
        torch.manual_seed(seed)
        network = TrainableDispatchNetwork(recipe.hidden_size, recipe.initial_rule == "hypsched")
        module = ReinforceModule(network, environment, recipe, seed)
        best = WeightAveraging(
            module.network, sample_episodes(environment, seed, "held out", recipe.validation_episodes), recipe
        )
        callbacks = [history, best, Checkpointer(work, SAVE_EVERY_STEPS)]
        trainer.fit(module, StepLoader(recipe.steps), callbacks, checkpoint=work / CHECKPOINT_FILE)
    metrics = {
        "recipe": asdict(recipe),
        "best_step": best.best_step,
        "held_out_latencies": [round(each, 5) for each in best.values],
        "training_s": sum(history.step_times_s),
    }
    return replace(best.best_network().export(), metrics=metrics)


def sample_episodes(environment: DispatchEnvironment, seed: int, name: str, count: int) -> list[Episode]:
    """`count` episodes of that name; different names give different episodes."""
    return [environment.sample_episode(seed, f"{name} {i}") for i in range(count)]
