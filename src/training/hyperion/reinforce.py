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

from serving.core.keyed_random import key, uniform
from serving.core.queued_request import Task
from serving.learned.dispatch_network import DispatchNetwork, graph_features
from serving.messages import LoadReport
from training.hyperion.environment import DispatchEnvironment, Episode
from training.hyperion.network import TrainableDispatchNetwork


@dataclass(frozen=True)
class DispatchAction:
    """Of a node for a task: what was seen, which node it was, and what it was worth."""

    task_features: list[float]
    node_features: list[list[float]]
    chosen: int
    advantage: float = 0.0


class SampledDispatch:
    """Dispatches by drawing a node from the softmax of the scores, and keeps what it saw, by session."""

    needs_load_reports = True

    def __init__(self, dispatcher: DispatchNetwork, seed: int) -> None:
        self.actions: dict[str, list[DispatchAction]] = {}
        self._dispatcher, self._seed = dispatcher, seed

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        seen = graph_features(task, reports)
        chance = uniform(key(self._seed, task.session), task.choice_index, f"draw from {reports[0].node}")
        chosen = _sample_softmax(self._dispatcher.scores_from_features(*seen), chance)
        self.actions.setdefault(task.session, []).append(DispatchAction(*seen, chosen))
        return reports[chosen].node


def _sample_softmax(scores: Sequence[float], uniform_draw: float) -> int:
    weights = [exp(score - max(scores)) for score in scores]
    left = uniform_draw * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return len(weights) - 1


def rollouts(episode: Episode, dispatcher: DispatchNetwork, num_rollouts: int, discount: float) -> list[DispatchAction]:
    """The choices of `num_rollouts` plays of one episode, each with its advantage.

    The reward of a task is minus its end-to-end latency over its lone latency. A choice is worth its task's reward and,
    with `discount` for each task between, those of the tasks that come later. The baseline is the mean worth of the
    same arrival in the other plays; the advantage is in parts of the episode's mean latency, so that a busy episode
    counts no more than an idle one.
    """
    drawings = [SampledDispatch(dispatcher, episode.setup.seed + i) for i in range(num_rollouts)]
    latencies = [episode.normalised_latencies(drawing) for drawing in drawings]
    worth = [_discounted_returns(each, discount) for each in latencies]
    mean = sum(map(sum, latencies)) / sum(map(len, latencies))
    found = []
    for drawing, own in zip(drawings, worth, strict=True):
        for i, query in enumerate(episode.queries):
            baseline = (sum(each[i] for each in worth) - own[i]) / (num_rollouts - 1)
            choices = drawing.actions.get(query.request.session, [])
            found += [replace(each, advantage=(own[i] - baseline) / mean) for each in choices]
    return found


def _discounted_returns(latencies: Sequence[float], discount: float) -> list[float]:
    """Of each arrival: its own reward and what follows."""
    found, after = [], 0.0
    for latency in reversed(latencies):
        after = discount * after - latency
        found.append(after)
    return found[::-1]


@dataclass(frozen=True)
class ReinforceRecipe:
    """Raises ValueError for a value out of range."""

    hidden_size: int = 16
    """Of a vertex's state."""
    steps: int = 64
    """At most; each plays `episodes_per_step` new ones."""
    episodes_per_step: int = 4
    rollouts_per_episode: int = 4
    """Of each episode: they are each other's baseline."""
    learning_rate: float = 0.01
    """Adam's, which falls along a line to a twentieth."""
    discount: float = 0.8
    """Of what a task's choices mean for the next task."""
    entropy_weight: float = 0.01
    """Weight of the choices' entropy in the loss, which falls along a line to nothing."""
    ema_decay: float = 0.95
    """What is served is a moving average of the weights: how much of it a step leaves as it was."""
    eval_steps: int = 16
    """Steps between two looks at the held-out episodes."""
    validation_episodes: int = 32
    """Episodes by which the best weights are found."""
    test_episodes: int = 48
    """Further episodes, by which these are judged."""

    def __post_init__(self) -> None:
        for name, least in (
            ("hidden_size", 1), ("steps", 1), ("episodes_per_step", 1), ("rollouts_per_episode", 2), ("eval_steps", 1), ("validation_episodes", 1),
            ("test_episodes", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"recipe.{name} must be {least} or more, got {getattr(self, name)}")
        for name in ("discount", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 0 or more and below 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or self.entropy_weight < 0:
            raise ValueError(f"recipe.learning_rate must be above 0 and recipe.entropy_weight 0 or more, got {self.learning_rate} and "
                             f"{self.entropy_weight}")  # fmt: skip

    def remaining_share(self, step: int) -> float:
        """The share of the steps that is left, in a step counted from 0."""
        return 1 - step / self.steps

    def lr_factor(self, step: int) -> float:
        """Of `learning_rate`, in a step counted from 0."""
        return max(0.05, self.remaining_share(step))


class ReinforceModule(LightningModule):
    """Plays new episodes of `world` in every step, and makes choices likelier that were better than others."""

    def __init__(
        self, network: TrainableDispatchNetwork, environment: DispatchEnvironment, recipe: ReinforceRecipe, seed: int
    ) -> None:
        super().__init__()
        self.network = network
        self._environment, self._recipe, self._seed = environment, recipe, seed

    def training_step(self, step: int, _: int) -> Tensor:
        recipe, dispatcher = self._recipe, self.network.export()
        episodes = [
            self._environment.sample_episode(self._seed, f"step {step} episode {i}")
            for i in range(recipe.episodes_per_step)
        ]
        played = [rollouts(episode, dispatcher, recipe.rollouts_per_episode, recipe.discount) for episode in episodes]
        choices = [each for one in played for each in one]
        return self.loss(collate(choices).to(self.device), recipe.entropy_weight * recipe.remaining_share(step))

    def loss(self, batch: ActionBatch, entropy_weight: float) -> Tensor:
        """Minus the mean of log-probability times advantage, in standard deviations, and of the weighted entropy."""
        odds: Tensor = self.network(batch.task_features, batch.node_features, batch.node_mask).log_softmax(1)
        unsure = -(odds.exp() * odds.masked_fill(~batch.node_mask, 0)).sum(1)
        chosen = odds.gather(1, batch.chosen[:, None])[:, 0]
        advantage = batch.advantage / (batch.advantage.square().mean().sqrt() + 1e-6)
        return -(chosen * advantage + entropy_weight * unsure).mean()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self._recipe.learning_rate, betas=(0.9, 0.95))
        scheduler = LambdaLR(optimizer, self._recipe.lr_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ActionBatch(NamedTuple):
    """Choices side by side; there are K places for nodes, and not all graphs have one in each."""

    task_features: Tensor
    """(choices, features)"""
    node_features: Tensor
    """(choices, K, features)"""
    node_mask: Tensor
    """(choices, K)"""
    chosen: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> ActionBatch:
        return ActionBatch(*(each.to(device) for each in self))


def collate(actions: Sequence[DispatchAction]) -> ActionBatch:
    places = max(len(each.node_features) for each in actions)
    nowhere = [0.0] * len(actions[0].node_features[0])
    return ActionBatch(
        torch.tensor([each.task_features for each in actions]),
        torch.tensor([each.node_features + [nowhere] * (places - len(each.node_features)) for each in actions]),
        torch.tensor([[i < len(each.node_features) for i in range(places)] for each in actions]),
        torch.tensor([each.chosen for each in actions]),
        torch.tensor([each.advantage for each in actions]),
    )


class StepLoader:
    """The numbers of the steps, each of which names its episodes; can be saved and continued."""

    def __init__(self, count: int) -> None:
        self._count, self._next_step = count, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        while self._next_step < self._count:
            self._next_step += 1
            yield self._next_step - 1
        self._next_step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next_step = state["done"]
