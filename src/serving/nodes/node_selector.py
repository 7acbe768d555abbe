"""Late binding of a hop to a node of its tier, from what the nodes report and what was sent to them since."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from serving.core.kv_accounting import round_up_to_blocks
from serving.core.task import Task
from serving.messages import INF, LoadReport, SequenceSlice
from serving.policy.slots.dispatch import Dispatch

TierNodes = Mapping[str, tuple[str, ...]]
"""Tier -> the nodes in it; a name that is no tier is a node's own."""

_NOMINAL_TOKEN_S = 0.001
"""Seconds a row, until a node reports its own."""


class NodeSelector:
    """Of `owner`, who asks others: which node of a tier it asks, where caches grow by `block_tokens`."""

    def __init__(self, tiers: TierNodes, dispatch: Dispatch, owner: str, block_tokens: int = 1) -> None:
        self._block_tokens = block_tokens
        self._tiers, self._dispatch, self._num_choices = tiers, dispatch, crc32(owner.encode())
        self.lost_nodes: set[str] = set()
        self.load_reports: dict[str, LoadReport] = {}
        """Of the nodes that reported, or were sent something."""

    def reachable(self, tier: str) -> bool:
        """Is a node of that tier alive?"""
        return any(node not in self.lost_nodes for node in self._tiers.get(tier, (tier,)))

    def reachable_nodes(self, tiers: Sequence[str]) -> list[str]:
        """All living nodes of these tiers."""
        nodes = dict.fromkeys(node for name in tiers for node in self._tiers.get(name, (name,)))
        return [node for node in nodes if node not in self.lost_nodes]

    def mark_lost(self, node: str) -> None:
        self.lost_nodes.add(node)
        self.load_reports.pop(node, None)  # when it is back it has promised nothing

    def mark_restored(self, node: str) -> None:
        self.lost_nodes.discard(node)

    def choose(self, tier: str, seq: SequenceSlice, budget: int) -> str:
        """A living node of the tier `tier`; its first where none lives."""
        known = self._tiers.get(tier, (tier,))
        nodes = [node for node in known if node not in self.lost_nodes]
        if len(nodes) < 2:
            return (nodes or known)[0]
        tokens = round_up_to_blocks(seq.start + seq.num_tokens + budget - 1, self._block_tokens)
        task = Task(seq.session, seq.num_tokens, budget, tokens, self._num_choices)
        node = self._dispatch.choose(task, [self._load_report(n) for n in nodes])
        self._num_choices += 1
        told = self._load_report(node)
        self.load_reports[node] = replace(
            told, queued_s=told.queued_s + task.compute_s(told), free_tokens=told.free_tokens - task.max_cached_len
        )  # fmt: skip
        return node

    def _load_report(self, node: str) -> LoadReport:
        return self.load_reports.get(node) or LoadReport(node, 0.0, _NOMINAL_TOKEN_S, _NOMINAL_TOKEN_S, INF)
