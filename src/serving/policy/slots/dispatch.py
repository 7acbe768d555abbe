"""Slot `dispatch`: which node of a tier takes a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serving.core.keyed_random import key, uniform
from serving.core.queued_request import Task
from serving.messages import LoadReport


class Dispatch(Protocol):
    @property
    def needs_load_reports(self) -> bool:
        """True if nodes must report their load."""
        ...

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        """The name of the chosen node.

        `reports` has one entry for each reachable node, two or more, and includes what was sent to the node since.
        """
        ...


@runtime_checkable
class OwnerDispatch(Dispatch, Protocol):
    """A dispatch that sends all tasks of an owner to one node while that node is reachable."""

    def node_of(self, owner: str, nodes: Sequence[str]) -> str:
        """The owner's node among `nodes`, one or more."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """Each owner's sessions go to the nodes in turn. Owners begin at different nodes."""

    needs_load_reports = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return reports[task.choice_index % len(reports)].node


@dataclass(frozen=True)
class RandomDispatch:
    """Any node with the same probability, keyed by the session and by how many nodes its owner chose before.

    That number follows the order in which the owner's requests come, so a session may go elsewhere where they come in
    another order: under another policy, or on the wall clock.
    """

    seed: int = 0
    needs_load_reports = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        draw = uniform(key(self.seed, task.session), task.choice_index, f"dispatch to {reports[0].node}")
        return reports[int(draw * len(reports))].node


@dataclass(frozen=True)
class Affinity:
    """Rendezvous hashing: all tasks of an owner go to the node whose hash together with the owner's name is highest.

    If a node is lost, only its owners go to other nodes. Source: Thaler and Ravishankar, Using name-based mappings to
    increase hit rates, 1998.
    """

    needs_load_reports = False

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return self.node_of(task.owner, [report.node for report in reports])

    def node_of(self, owner: str, nodes: Sequence[str]) -> str:
        stream = key(0, owner)  # mixed before the node's name is: a CRC-32 of both names together is linear in each
        return max(nodes, key=lambda node: key(stream, node))


@dataclass(frozen=True)
class HypSched:
    """Hyperion, Algorithm 2: the earliest completion among nodes with enough memory, the first of equals.

    One pass over the tier's nodes. If no node has the memory, the printed algorithm returns null and the task would be
    lost; here the node with most free memory is chosen, which evicts caches or reports an error.
    """

    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        best, least_s = None, float("inf")
        for report in reports:
            completion_s = report.queued_s + task.compute_s(report)
            if report.free_tokens >= task.max_cached_len and completion_s < least_s:
                best, least_s = report, completion_s
        return (best or max(reports, key=lambda each: each.free_tokens)).node


@dataclass(frozen=True)
class EarliestFinish:
    """HEFT's second step: the node on which the task ends first, whatever its free memory.

    Links to the nodes of one tier are alike, so they do not matter. Tasks are not inserted into gaps between earlier
    tasks: gaps are not known beforehand.
    """

    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        return min(reports, key=lambda each: each.queued_s + task.compute_s(each)).node


class NodeScorer(Protocol):
    """Scores nodes for a task; `serving.learned.dispatch_network.DispatchNetwork` is one."""

    def scores(self, task: Task, reports: Sequence[LoadReport]) -> Sequence[float]:
        """One score for each node; the highest is best."""
        ...


@dataclass(frozen=True)
class LearnedDispatch:
    """The node that a trained graph network scores highest: GPipe's scheduler in Hyperion, section V-A."""

    dispatcher: NodeScorer
    needs_load_reports = True

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        scores = self.dispatcher.scores(task, reports)
        return reports[max(range(len(reports)), key=scores.__getitem__)].node
