"""The dispatch network and how it learns: REINFORCE, with rollouts of the same arrivals as the baseline
(Williams 1992).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from serving.core.keyed_random import key, uniform
from serving.core.queued_request import Task
from serving.learned.dispatch_network import (
    MESSAGE_ROUNDS,
    NODE_FEATURES,
    DispatchNetwork,
    graph_features,
    layer_shapes,
)
from serving.messages import LoadReport
from training.fitting.batches import ResumableLoader
from training.fitting.recipe import ReinforceRecipe
from training.hyperion.environment import DispatchEnvironment, Episode

COMPLETION_WEIGHT = 2.0
"""Decrease of an untrained network's log-odds per unit of completion time (a task's mean time)."""
MEMORY_WEIGHT = 6.0
"""Their decrease if the node has no memory for the task."""
INIT_SCALE = 0.1
"""Scale of the vertex states' weights in the score layer, relative to torch's own initialisation."""


class TrainableDispatchNetwork(nn.Module):
    """Computes the scores of `serving.learned.dispatch_network.DispatchNetwork` for many graphs at once.

    `begins_at_rule`: True: it begins at HypSched-RT's rule; False: at torch's random weights.
    """

    def __init__(self, hidden: int, begins_at_rule: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {name: nn.Linear(inputs, outputs) for name, (outputs, inputs) in layer_shapes(hidden).items()}
        )
        if begins_at_rule:
            self._init_score_layer(hidden)

    @torch.no_grad()
    def _init_score_layer(self, hidden: int) -> None:
        """Begins near the rule "the node with enough memory that completes the task first", which training improves."""
        score = self.layers["score"]
        assert isinstance(score, nn.Linear)
        score.weight *= INIT_SCALE
        score.weight[0, hidden:] = 0.0
        score.weight[0, hidden + NODE_FEATURES.index("completion")] = -COMPLETION_WEIGHT
        score.weight[0, hidden + NODE_FEATURES.index("enough")] = MEMORY_WEIGHT

    def forward(self, task: Tensor, nodes: Tensor, node_mask: Tensor) -> Tensor:
        """Scores (graphs, K); minus infinity where `node_mask` is False.

        Shapes: `task` (graphs, features), `nodes` (graphs, K, features), `node_mask` (graphs, K).
        """
        share = (node_mask / node_mask.sum(1, keepdim=True))[..., None]
        t, n = self._linear_relu("task", task), self._linear_relu("node", nodes)
        for i in range(1, MESSAGE_ROUNDS + 1):
            t = self._linear_relu(f"task_{i}", torch.cat((t, (n * share).sum(1)), -1))
            n = self._linear_relu(f"node_{i}", torch.cat((n, t[:, None].expand_as(n)), -1))
        scores: Tensor = self.layers["score"](torch.cat((n, nodes), -1))[..., 0]
        return scores.masked_fill(~node_mask, -torch.inf)

    def _linear_relu(self, name: str, x: Tensor) -> Tensor:
        return torch.relu(self.layers[name](x))

    def export(self) -> DispatchNetwork:
        """A copy of the weights in the form that is served."""
        found = {}
        for name, layer in self.layers.items():
            assert isinstance(layer, nn.Linear)
            weight, bias = (each.detach().cpu().float().numpy().copy() for each in (layer.weight, layer.bias))
            found[name] = weight, bias
        return DispatchNetwork(found)


@dataclass(frozen=True)
class DispatchAction:
    """The choice of a node for a task: the features seen, the index of the node, and the advantage."""

    task_features: list[float]
    node_features: list[list[float]]
    chosen: int
    advantage: float = 0.0


class SampledDispatch:
    """Samples a node from the softmax of the scores, and records every action by session."""

    needs_load_reports = True

    def __init__(self, dispatcher: DispatchNetwork, seed: int) -> None:
        self.actions: dict[str, list[DispatchAction]] = {}
        self._dispatcher, self._seed = dispatcher, seed

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        features = graph_features(task, reports)
        draw = uniform(key(self._seed, task.session), task.choice_index, f"draw from {reports[0].node}")
        chosen = _sample_softmax(self._dispatcher.scores_from_features(*features), draw)
        self.actions.setdefault(task.session, []).append(DispatchAction(*features, chosen))
        return reports[chosen].node


def _sample_softmax(scores: Sequence[float], uniform_draw: float) -> int:
    weights = [exp(score - max(scores)) for score in scores]
    remaining = uniform_draw * sum(weights)
    for i, weight in enumerate(weights):
        remaining -= weight
        if remaining < 0:
            return i
    return len(weights) - 1


def rollouts(episode: Episode, dispatcher: DispatchNetwork, num_rollouts: int, discount: float) -> list[DispatchAction]:
    """The actions of `num_rollouts` rollouts of one episode, each with its advantage.

    A task's reward is minus its end-to-end latency over its unloaded latency. An action's return is its task's reward
    plus the rewards of later tasks, discounted per task. The baseline is the mean return of the same arrival in the
    other rollouts. The advantage is divided by the episode's mean latency, so that a busy episode has no more weight
    than an idle one.
    """
    policies = [SampledDispatch(dispatcher, episode.setup.seed + i) for i in range(num_rollouts)]
    latencies = [episode.normalised_latencies(policy) for policy in policies]
    returns = [_discounted_returns(each, discount) for each in latencies]
    mean = sum(map(sum, latencies)) / sum(map(len, latencies))
    found = []
    for policy, own in zip(policies, returns, strict=True):
        for i, query in enumerate(episode.queries):
            baseline = (sum(each[i] for each in returns) - own[i]) / (num_rollouts - 1)
            actions = policy.actions.get(query.request.session, [])
            found += [replace(each, advantage=(own[i] - baseline) / mean) for each in actions]
    return found


def _discounted_returns(latencies: Sequence[float], discount: float) -> list[float]:
    """Each arrival's reward plus the discounted rewards of later ones."""
    found, after = [], 0.0
    for latency in reversed(latencies):
        after = discount * after - latency
        found.append(after)
    return found[::-1]


class ReinforceModule(LightningModule):
    """Samples new episodes of `environment` in every step, and makes actions with a positive advantage more likely."""

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
        sampled = [rollouts(episode, dispatcher, recipe.rollouts_per_episode, recipe.discount) for episode in episodes]
        actions = [each for one in sampled for each in one]
        return self.loss(collate(actions).to(self.device), recipe.entropy_weight * recipe.remaining_share(step))

    def loss(self, batch: "ActionBatch", entropy_weight: float) -> Tensor:
        """Minus the mean of log-probability times normalised advantage, minus the weighted mean entropy."""
        log_probs: Tensor = self.network(batch.task_features, batch.node_features, batch.node_mask).log_softmax(1)
        entropy = -(log_probs.exp() * log_probs.masked_fill(~batch.node_mask, 0)).sum(1)
        chosen = log_probs.gather(1, batch.chosen[:, None])[:, 0]
        advantage = batch.advantage / (batch.advantage.square().mean().sqrt() + 1e-6)
        return -(chosen * advantage + entropy_weight * entropy).mean()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self._recipe.learning_rate, betas=(0.9, 0.95))
        scheduler = LambdaLR(optimizer, self._recipe.lr_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ActionBatch(NamedTuple):
    """Actions as tensors; graphs with fewer than K nodes are padded."""

    task_features: Tensor
    """(actions, features)"""
    node_features: Tensor
    """(actions, K, features)"""
    node_mask: Tensor
    """(actions, K)"""
    chosen: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> "ActionBatch":
        return ActionBatch(*(each.to(device) for each in self))


def collate(actions: Sequence[DispatchAction]) -> ActionBatch:
    places = max(len(each.node_features) for each in actions)
    padding = [0.0] * len(actions[0].node_features[0])
    return ActionBatch(
        torch.tensor([each.task_features for each in actions]),
        torch.tensor([each.node_features + [padding] * (places - len(each.node_features)) for each in actions]),
        torch.tensor([[i < len(each.node_features) for i in range(places)] for each in actions]),
        torch.tensor([each.chosen for each in actions]),
        torch.tensor([each.advantage for each in actions]),
    )


class StepLoader(ResumableLoader[int]):
    """The numbers of the steps; each step samples its own episodes."""

    def batch(self, step: int) -> int:
        return step
