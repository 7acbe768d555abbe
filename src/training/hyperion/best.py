"""Which weights are served: the moving average that had the least latency on held-out episodes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import Trainer as LightningTrainer

from serving.policy.slots.dispatch import Learned
from training.hyperion.environment import Episode
from training.hyperion.network import Network
from training.hyperion.recipe import Recipe
from training.hyperion.reinforce import Study
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
