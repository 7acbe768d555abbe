"""Late binding of a hop to a node of its tier, from what the nodes report and what was sent to them since."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from serving.core.kv_accounting import whole
from serving.core.task import Task
from serving.messages import INF, Backlog, Rows
from serving.policy.slots.dispatch import Dispatch

Tiers = Mapping[str, tuple[str, ...]]
"""Tier -> the nodes in it; a name that is no tier is a node's own."""

_NOMINAL_ROW_S = 0.001
"""Seconds a row, until a node reports its own."""


class Chooser:
    """Of `owner`, who asks others: which node of a tier it asks, where caches grow by `block_tokens`."""

    def __init__(self, tiers: Tiers, dispatch: Dispatch, owner: str, block_tokens: int = 1) -> None:
        self._block_tokens = block_tokens
        self._tiers, self._dispatch, self._turn = tiers, dispatch, crc32(owner.encode())
        self.dead: set[str] = set()
        self.backlogs: dict[str, Backlog] = {}
        """Of the nodes that reported, or were sent something."""

    def reachable(self, name: str) -> bool:
        """Is a node of that tier alive?"""
        return any(node not in self.dead for node in self._tiers.get(name, (name,)))

    def living(self, names: Sequence[str]) -> list[str]:
        """All living nodes of these tiers."""
        nodes = dict.fromkeys(node for name in names for node in self._tiers.get(name, (name,)))
        return [node for node in nodes if node not in self.dead]

    def lost(self, node: str) -> None:
        self.dead.add(node)
        self.backlogs.pop(node, None)  # when it is back it has promised nothing

    def joined(self, node: str) -> None:
        self.dead.discard(node)

    def choose(self, name: str, rows: Rows, budget: int) -> str:
        """A living node of the tier `name`; its first where none lives."""
        known = self._tiers.get(name, (name,))
        nodes = [node for node in known if node not in self.dead]
        if len(nodes) < 2:
            return (nodes or known)[0]
        tokens = whole(rows.start + rows.n + budget - 1, self._block_tokens)
        task = Task(rows.session, rows.n, budget, tokens, self._turn)
        node = self._dispatch.choose(task, [self._backlog(n) for n in nodes])
        self._turn += 1
        told = self._backlog(node)
        self.backlogs[node] = replace(
            told, queued_s=told.queued_s + task.seconds(told), free=told.free - task.tokens
        )  # fmt: skip
        return node

    def _backlog(self, node: str) -> Backlog:
        return self.backlogs.get(node) or Backlog(node, 0.0, _NOMINAL_ROW_S, _NOMINAL_ROW_S, INF)
