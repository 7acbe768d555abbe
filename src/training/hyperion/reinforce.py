"""How the network learns: REINFORCE, with plays of the same arrivals as the baseline (Williams 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from training.hyperion.environment import World
from training.hyperion.network import Network
from training.hyperion.recipe import Recipe
from training.hyperion.rollout import Choice, rollouts


class Study(LightningModule):
    """Plays new episodes of `world` in every step, and makes choices likelier that were better than others."""

    def __init__(self, network: Network, world: World, recipe: Recipe, seed: int) -> None:
        super().__init__()
        self.network = network
        self._world, self._recipe, self._seed = world, recipe, seed

    def training_step(self, step: int, _: int) -> Tensor:
        recipe, dispatcher = self._recipe, self.network.dispatcher()
        episodes = [self._world.episode(self._seed, f"step {step} episode {i}") for i in range(recipe.episodes)]
        played = [rollouts(episode, dispatcher, recipe.plays, recipe.discount) for episode in episodes]
        choices = [each for one in played for each in one]
        return self.loss(gathered(choices).to(self.device), recipe.entropy * recipe.left(step))

    def loss(self, batch: Batch, entropy: float) -> Tensor:
        """Minus the mean of log-probability times advantage, in standard deviations, and of the weighted entropy."""
        odds: Tensor = self.network(batch.task, batch.nodes, batch.there).log_softmax(1)
        unsure = -(odds.exp() * odds.masked_fill(~batch.there, 0)).sum(1)
        chosen = odds.gather(1, batch.chosen[:, None])[:, 0]
        advantage = batch.advantage / (batch.advantage.square().mean().sqrt() + 1e-6)
        return -(chosen * advantage + entropy * unsure).mean()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self._recipe.rate, betas=(0.9, 0.95))
        scheduler = LambdaLR(optimizer, self._recipe.rate_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Batch(NamedTuple):
    """Choices side by side; there are K places for nodes, and not all graphs have one in each."""

    task: Tensor
    """(choices, features)"""
    nodes: Tensor
    """(choices, K, features)"""
    there: Tensor
    """(choices, K)"""
    chosen: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(each.to(device) for each in self))


def gathered(choices: Sequence[Choice]) -> Batch:
    places = max(len(each.nodes) for each in choices)
    nowhere = [0.0] * len(choices[0].nodes[0])
    return Batch(
        torch.tensor([each.task for each in choices]),
        torch.tensor([each.nodes + [nowhere] * (places - len(each.nodes)) for each in choices]),
        torch.tensor([[i < len(each.nodes) for i in range(places)] for each in choices]),
        torch.tensor([each.chosen for each in choices]),
        torch.tensor([each.advantage for each in choices]),
    )


class Steps:
    """The numbers of the steps, each of which names its episodes; can be saved and continued."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        while self._done < self._count:
            self._done += 1
            yield self._done - 1
        self._done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
