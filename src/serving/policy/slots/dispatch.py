"""Slot `dispatch`: which node of a tier takes a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.keyed_random import key, luck
from serving.core.task import Task
from serving.messages import Backlog


class Dispatch(Protocol):
    @property
    def watches(self) -> bool:
        """Must nodes tell what waits in them?"""
        ...

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        """A node's name; `backlogs` are those of the nodes that live, two or more, and count what was sent to them."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """Each chooser's sessions in turn; choosers begin at different nodes. With one node in the tier: that one."""

    watches = False

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        return backlogs[task.turn % len(backlogs)].node


@dataclass(frozen=True)
class Random:
    """Any node with the same probability, by the luck of the session."""

    seed: int = 0
    watches = False

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        chance = luck(key(self.seed, task.session), task.turn, f"dispatch to {backlogs[0].node}")
        return backlogs[int(chance * len(backlogs))].node


@dataclass(frozen=True)
class HypSched:
    """Hyperion, Algorithm 2: the earliest completion among nodes with memory for the task, the first of equals.

    One pass over the tier's nodes. Where none has the memory, the printed algorithm returns null and the task would be
    lost; this one takes the node with most memory free, which makes room or answers that it cannot.
    """

    watches = True

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        best, least_s = None, float("inf")
        for backlog in backlogs:
            cost_s = backlog.queued_s + task.seconds(backlog)
            if backlog.free >= task.tokens and cost_s < least_s:
                best, least_s = backlog, cost_s
        return (best or max(backlogs, key=lambda each: each.free)).node


@dataclass(frozen=True)
class EarliestFinish:
    """HEFT's second step: the node on which the task ends first, whatever memory it has.

    The way to every node of a tier is alike, so that it does not tell them apart; tasks are never inserted before those
    that were placed earlier, because nobody knows when these leave a gap.
    """

    watches = True

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        return min(backlogs, key=lambda each: each.queued_s + task.seconds(each)).node


class Scorer(Protocol):
    """Tells which node suits a task best, as `serving.learned.dispatch_network.Dispatcher` does."""

    def scores(self, task: Task, backlogs: Sequence[Backlog]) -> Sequence[float]:
        """One a node, the higher the better."""
        ...


@dataclass(frozen=True)
class Learned:
    """The node that a trained graph network scores highest, the first of equals: GPipe's scheduler in Hyperion, V-A."""

    dispatcher: Scorer
    watches = True

    def choose(self, task: Task, backlogs: Sequence[Backlog]) -> str:
        scores = self.dispatcher.scores(task, backlogs)
        return backlogs[max(range(len(backlogs)), key=scores.__getitem__)].node
