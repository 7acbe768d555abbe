"""An episode under a network that draws its choices, and what each choice was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from serving.core.keyed_random import key, luck
from serving.core.task import Task
from serving.learned.dispatch_network import Dispatcher, graph
from serving.messages import Backlog
from training.hyperion.environment import Episode


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
