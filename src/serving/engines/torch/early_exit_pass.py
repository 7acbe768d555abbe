"""One session's rows on their way down a drafter's layers, and whom they take along.

A row that leaves early keeps its hidden state; when a later row goes deeper, all that wait at a layer enter it with
it. So whatever a row looks at was computed by all layers above, in the order of the text: a row that runs to the end
yields what it would yield if nobody had ever left early. (Filling the skipped layers' caches from the state at the exit
would be cheaper for lone exits, but an approximation whose result depends on who left where.)
"""

from collections.abc import Sequence

import torch

from serving.engines.torch.importance import Importance
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.hardware.exit_depths import Depths
from serving.hardware.latency import Load


class Descent:
    """
    Args:
        slot: the session's cache, rolled back to where the rows begin.
        tokens: of the new rows.
        parents: where these form a tree, each one's parent among them, -1 for none.
    """

    def __init__(
        self,
        stack: Stack,
        slot: Slot,
        tokens: Sequence[int],
        parents: tuple[int, ...] | None = None,
        importance: Importance | None = None,
    ) -> None:
        self._stack, self._slot, self._parents, self._importance = stack, slot, parents, importance
        self._layers = len(stack.model.layers)
        if slot.depths is None:
            slot.depths = Depths(self._layers)
            slot.depths.grow(slot.length, self._layers)
        self._depths = slot.depths
        self._hidden, self._new = stack.embed(tokens), len(tokens)
        self._past, self._end, self._at = slot.length, slot.length + len(tokens), 0

    def to(self, layer: int) -> torch.Tensor:
        """Runs on until `layer` layers have run; the new rows' hidden states, of shape (rows, hidden)."""
        while self._at < layer:
            self._join()
            last = min(layer, self._depths.next_join(self._at))
            start = self._depths.first_below(self._at)
            lot = Lot(self._slot, self._end - start, self._tree(self._past - start), start)
            self._hidden = self._stack.run(self._hidden, [lot], self._at, last, self._importance)
            self._at = last
        return self._hidden[-self._new :]

    def _join(self) -> None:
        """Who waits for this layer comes before those who waited higher up."""
        if count := self._depths.waiting(self._at):
            at = self._depths.first_below(self._at) - (self._past - self._depths.short)
            self._hidden = torch.cat([*(one[None] for one in self._slot.waiting[at : at + count]), self._hidden])

    def _tree(self, joined: int) -> tuple[int, ...] | None:
        """Parents of all rows, those that joined included: they are a chain from which the tree grows."""
        if self._parents is None:
            return None
        return (*range(-1, joined - 1), *(joined - 1 if one < 0 else one + joined for one in self._parents))

    def leave(self) -> tuple[Load, ...]:
        """Ends here: the cache has grown by the new rows, some layers of which may be missing. What the layers did."""
        deeper = self._slot.waiting[: self._depths.short - (len(self._hidden) - self._new)]
        self._slot.waiting = [*deeper, *(self._hidden.unbind(0) if self._at < self._layers else ())]
        self._slot.length = self._end
        loads = self._depths.passed(self._new, self._at)
        if self._importance is not None:
            self._importance.end_pass()
        return loads
