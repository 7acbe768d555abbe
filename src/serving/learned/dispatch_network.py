"""Hyperion's learned dispatcher as an artifact: a graph network over a task and its candidate nodes (section V-A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.core.queued_request import Task
from serving.learned import artifact
from serving.learned.artifact import ArtifactFormat, Floats, check_digest
from serving.learned.mlp import DenseLayer
from serving.messages import LoadReport

HEADER, WEIGHTS = "dispatcher.json", "dispatcher.safetensors"
FORMAT = ArtifactFormat("dispatcher", HEADER, WEIGHTS, "policy.dispatch.dispatcher.path")
MESSAGE_ROUNDS = 2
TASK_FEATURES = ("rows", "steps", "nodes")
"""The task vertex: t / (t + 64) of its t tokens, p / (p + 8) of its p passes, 1 / K for K nodes."""
NODE_FEATURES = ("queued", "steps", "rows", "completion", "free", "enough")
"""A node vertex. Seconds of the node's queue, of the task's passes, of its further tokens, and their sum, each over the
task's mean seconds, so that they do not depend on the speed of all chips. Free memory over the task's, limited to
`_MAX_MEMORY_RATIO` and scaled to -1 to 1; and 1 if it is enough, else 0.
"""
LAYER_NAMES = (
    "task",
    "node",
    *(f"{name}_{i}" for i in range(1, MESSAGE_ROUNDS + 1) for name in ("task", "node")),
    "score",
)
_MAX_MEMORY_RATIO = 4.0
_GRAPH = {
    "task": list(TASK_FEATURES),
    "node": list(NODE_FEATURES),
    "message_rounds": MESSAGE_ROUNDS,
    "aggregation": "mean",
}

Doubles: TypeAlias = NDArray[np.float64]


def graph_features(task: Task, reports: Sequence[LoadReport]) -> tuple[list[float], list[list[float]]]:
    """Features of the task, in the order of `TASK_FEATURES`, and of each of K nodes, in that of `NODE_FEATURES`."""
    own = [task.compute_s(each) for each in reports]
    mean_s = sum(own) / len(own) or 1.0
    nodes = [_node_features(task, each, seconds, mean_s) for each, seconds in zip(reports, own, strict=True)]
    return [task.num_tokens / (task.num_tokens + 64), task.num_passes / (task.num_passes + 8), 1 / len(own)], nodes


def _node_features(task: Task, report: LoadReport, task_s: float, mean_s: float) -> list[float]:
    steps_s, rows_s = task.num_passes * report.pass_s, (task.num_tokens - 1) * report.per_token_s
    seconds = (report.queued_s, steps_s, rows_s, report.queued_s + task_s)
    free = (
        min(max(report.free_tokens / max(1, task.max_cached_len), -_MAX_MEMORY_RATIO), _MAX_MEMORY_RATIO)
        / _MAX_MEMORY_RATIO
    )
    return [*(each / mean_s for each in seconds), free, float(report.free_tokens >= task.max_cached_len)]


@dataclass(frozen=True, eq=False, repr=False)
class DispatchNetwork:
    """Scores of the K nodes of a tier for a task, whatever K is.

    A bipartite graph of the task's vertex and the nodes' vertices. Both kinds are embedded. In each of
    `MESSAGE_ROUNDS` rounds the task aggregates the mean of its nodes, t = relu(W (t, mean n)), then each node the task,
    n = relu(V (n, t)). A linear layer computes a node's score from its state and its features.

    Raises ValueError for layers that do not fit each other, and for weights that are not finite.
    """

    layers: Mapping[str, DenseLayer]
    """By the names in `LAYER_NAMES`: weights of shape (outputs, inputs), biases of shape (outputs)."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.layers) != set(LAYER_NAMES):
            raise ValueError(f"a dispatcher has layers {', '.join(LAYER_NAMES)}, got {', '.join(sorted(self.layers))}")
        for name, (outputs, inputs) in layer_shapes(self.hidden_size).items():
            weight, bias = self.layers[name]
            if weight.shape != (outputs, inputs) or bias.shape != (outputs,):
                raise ValueError(
                    f"layer {name} of a dispatcher of width {self.hidden_size} goes from {inputs} to {outputs}, got "
                    f"weights of shape {weight.shape} and biases of shape {bias.shape}"
                )
        if not all(np.isfinite(each).all() for each in self.arrays().values()):
            raise ValueError("a weight is not finite")

    def __repr__(self) -> str:
        return f"dispatcher of width {self.hidden_size} {self.digest[:12]}"

    @property
    def hidden_size(self) -> int:
        """The width of a vertex's state."""
        return len(self.layers["task"][1])

    def scores(self, task: Task, reports: Sequence[LoadReport]) -> list[float]:
        """One score per node; the node with the highest takes the task."""
        return self.scores_from_features(*graph_features(task, reports))

    def scores_from_features(self, task: Sequence[float], nodes: Sequence[Sequence[float]]) -> list[float]:
        """Scores from features; nodes with equal features have equal scores."""
        seen = np.array(nodes)
        t, n = self._relu_layer("task", np.array(task)), self._relu_layer("node", seen)
        for i in range(1, MESSAGE_ROUNDS + 1):
            t = self._relu_layer(f"task_{i}", np.concatenate((t, n.mean(axis=0))))
            n = self._relu_layer(f"node_{i}", np.concatenate((n, np.broadcast_to(t, n.shape)), axis=1))
        found: list[float] = self._linear("score", np.concatenate((n, seen), axis=1))[:, 0].tolist()
        return found

    def _relu_layer(self, name: str, x: Doubles) -> Doubles:
        return np.maximum(self._linear(name, x), 0.0)

    def _linear(self, name: str, x: Doubles) -> Doubles:
        """Row by row: in a matrix product, rounding depends on the row's place in the matrix."""
        weight, bias = self._double_layers[name]
        found: Doubles = (x[..., None, :] * weight).sum(axis=-1) + bias
        return found

    @cached_property
    def _double_layers(self) -> dict[str, tuple[Doubles, Doubles]]:
        return {
            name: (weight.astype(np.float64), bias.astype(np.float64)) for name, (weight, bias) in self.layers.items()
        }

    @cached_property
    def digest(self) -> str:
        """The digest of everything that the scores depend on."""
        return artifact.digest(self.arrays())

    def arrays(self) -> dict[str, Floats]:
        """All weights by name, as they are saved."""
        pairs = [((f"{name}.weight", weight), (f"{name}.bias", bias)) for name, (weight, bias) in self.layers.items()]
        return {name: array for both in pairs for name, array in both}

    def save(self, folder: Path) -> None:
        """Writes dispatcher.json and dispatcher.safetensors."""
        header = {
            "family": "graph",
            "graph": _GRAPH,
            "hidden_size": self.hidden_size,
            "sha256": self.digest,
            "metrics": dict(self.metrics),
            "made_from": dict(self.made_from),
        }
        FORMAT.save(folder, header, self.arrays())


def layer_shapes(hidden_size: int) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of each layer of a dispatcher of that width."""
    rounds = dict.fromkeys(LAYER_NAMES[2:-1], (hidden_size, 2 * hidden_size))
    return {
        "task": (hidden_size, len(TASK_FEATURES)),
        "node": (hidden_size, len(NODE_FEATURES)),
        **rounds,
        "score": (1, hidden_size + len(NODE_FEATURES)),
    }


def load(path: Path) -> DispatchNetwork:
    """Reads the artifact that `training.hyperion.stages` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    header, saved = FORMAT.read_header(path), FORMAT.read_weights(path)
    with FORMAT.parsing(path):
        return _from_header(header, saved)


def _from_header(header: Mapping[str, Any], saved: dict[str, Floats]) -> DispatchNetwork:
    if header["graph"] != _GRAPH:
        raise ValueError(f"its graph is {header['graph']}, this code reads {_GRAPH}")
    found = DispatchNetwork(
        {name: (saved[f"{name}.weight"], saved[f"{name}.bias"]) for name in LAYER_NAMES},
        metrics=dict(header["metrics"]),
        made_from=dict(header["made_from"]),
    )
    check_digest(header["sha256"], found.digest)
    return found
