"""Slot `dispatch`: which node of a tier takes a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.keyed_random import key, uniform
from serving.core.queued_request import Task
from serving.messages import LoadReport


class Dispatch(Protocol):
    @property
    def needs_load_reports(self) -> bool:
        """Must nodes tell what waits in them?"""
        ...

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        """A node's name; `reports` are those of the nodes that live, two or more, and count what was sent to them."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """Each chooser's sessions in turn; choosers begin at different nodes. With one node in the tier: that one."""

    needs_load_reports = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return reports[task.choice_index % len(reports)].node


@dataclass(frozen=True)
class RandomDispatch:
    """Any node with the same probability, by the luck of the session."""

    seed: int = 0
    needs_load_reports = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        chance = uniform(key(self.seed, task.session), task.choice_index, f"dispatch to {reports[0].node}")
        return reports[int(chance * len(reports))].node


@dataclass(frozen=True)
class HypSched:
    """Hyperion, Algorithm 2: the earliest completion among nodes with memory for the task, the first of equals.

    One pass over the tier's nodes. Where none has the memory, the printed algorithm returns null and the task would be
    lost; this one takes the node with most memory free, which makes room or answers that it cannot.
    """

    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        best, least_s = None, float("inf")
        for backlog in reports:
            cost_s = backlog.queued_s + task.compute_s(backlog)
            if backlog.free_tokens >= task.max_cached_len and cost_s < least_s:
                best, least_s = backlog, cost_s
        return (best or max(reports, key=lambda each: each.free_tokens)).node


@dataclass(frozen=True)
class EarliestFinish:
    """HEFT's second step: the node on which the task ends first, whatever memory it has.

    The way to every node of a tier is alike, so that it does not tell them apart; tasks are never inserted before those
    that were placed earlier, because nobody knows when these leave a gap.
    """

    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return min(reports, key=lambda each: each.queued_s + task.compute_s(each)).node


class NodeScorer(Protocol):
    """Tells which node suits a task best, as `serving.learned.dispatch_network.DispatchNetwork` does."""

    def scores(self, task: Task, reports: Sequence[LoadReport]) -> Sequence[float]:
        """One a node, the higher the better."""
        ...


@dataclass(frozen=True)
class LearnedDispatch:
    """The node that a trained graph network scores highest, the first of equals: GPipe's scheduler in Hyperion, V-A."""

    dispatcher: NodeScorer
    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        scores = self.dispatcher.scores(task, reports)
        return reports[max(range(len(reports)), key=scores.__getitem__)].node
