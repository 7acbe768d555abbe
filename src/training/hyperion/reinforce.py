"""How the network learns: REINFORCE, with plays of the same arrivals as the baseline (Williams 1992).

An episode under a network that draws its choices, and what each choice was worth.

How a dispatcher learns, as configuration says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from serving.core.keyed_random import key, luck
from serving.core.task import Task
from serving.learned.dispatch_network import Dispatcher, graph
from serving.messages import Backlog
from training.hyperion.environment import Episode, World
from training.hyperion.network import Network


@dataclass(frozen=True)
class Choice:
    """Of a node for a task: what was seen, which node it was, and what it was worth."""

    task: list[float]
    nodes: list[list[float]]
    chosen: int
    advantage: float = 0.0


class Drawing:
    """Dispatches by drawing a node from the softmax of the scores, and keeps what it saw, by session."""

    watches = True

    def __init__(self, dispatcher: Dispatcher, seed: int) -> None:
        self.choices: dict[str, list[Choice]] = {}
        self._dispatcher, self._seed = dispatcher, seed

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        seen = graph(task, backlogs)
        chance = luck(key(self._seed, task.session), task.turn, f"draw from {backlogs[0].node}")
        chosen = _drawn(self._dispatcher.scored(*seen), chance)
        self.choices.setdefault(task.session, []).append(Choice(*seen, chosen))
        return backlogs[chosen].node


def _drawn(scores: Sequence[float], chance: float) -> int:
    weights = [exp(score - max(scores)) for score in scores]
    left = chance * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return len(weights) - 1


def rollouts(episode: Episode, dispatcher: Dispatcher, count: int, discount: float) -> list[Choice]:
    """The choices of `count` plays of one episode, each with its advantage.

    The reward of a task is minus its end-to-end latency over its lone latency. A choice is worth its task's reward and,
    with `discount` for each task between, those of the tasks that come later. The baseline is the mean worth of the
    same arrival in the other plays; the advantage is in parts of the episode's mean latency, so that a busy episode
    counts no more than an idle one.
    """
    drawings = [Drawing(dispatcher, episode.setup.seed + i) for i in range(count)]
    latencies = [episode.latencies(drawing) for drawing in drawings]
    worth = [_worth(each, discount) for each in latencies]
    mean = sum(map(sum, latencies)) / sum(map(len, latencies))
    found = []
    for drawing, own in zip(drawings, worth, strict=True):
        for i, query in enumerate(episode.queries):
            baseline = (sum(each[i] for each in worth) - own[i]) / (count - 1)
            choices = drawing.choices.get(query.call.session, [])
            found += [replace(each, advantage=(own[i] - baseline) / mean) for each in choices]
    return found


def _worth(latencies: Sequence[float], discount: float) -> list[float]:
    """Of each arrival: its own reward and what follows."""
    found, after = [], 0.0
    for latency in reversed(latencies):
        after = discount * after - latency
        found.append(after)
    return found[::-1]


@dataclass(frozen=True)
class Recipe:
    """Raises ValueError for a value out of range."""

    hidden: int = 16
    """Of a vertex's state."""
    steps: int = 64
    """At most; each plays `episodes` new ones."""
    episodes: int = 4
    plays: int = 4
    """Of each episode: they are each other's baseline."""
    rate: float = 0.01
    """Adam's, which falls along a line to a twentieth."""
    discount: float = 0.8
    """Of what a task's choices mean for the next task."""
    entropy: float = 0.01
    """Weight of the choices' entropy in the loss, which falls along a line to nothing."""
    keep: float = 0.95
    """What is served is a moving average of the weights: how much of it a step leaves as it was."""
    check_every: int = 16
    """Steps between two looks at the held-out episodes."""
    held_out: int = 32
    """Episodes by which the best weights are found."""
    tested: int = 48
    """Further episodes, by which these are judged."""

    def __post_init__(self) -> None:
        for name, least in (
            ("hidden", 1), ("steps", 1), ("episodes", 1), ("plays", 2), ("check_every", 1), ("held_out", 1),
            ("tested", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"recipe.{name} must be {least} or more, got {getattr(self, name)}")
        for name in ("discount", "keep"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 0 or more and below 1, got {getattr(self, name)}")
        if self.rate <= 0 or self.entropy < 0:
            raise ValueError(f"recipe.rate must be above 0 and recipe.entropy 0 or more, got {self.rate} and "
                             f"{self.entropy}")  # fmt: skip

    def left(self, step: int) -> float:
        """The share of the steps that is left, in a step counted from 0."""
        return 1 - step / self.steps

    def rate_factor(self, step: int) -> float:
        """Of `rate`, in a step counted from 0."""
        return max(0.05, self.left(step))


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
