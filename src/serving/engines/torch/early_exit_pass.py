"""One session's rows on their way down a drafter's layers, and whom they take along.

A row that leaves early keeps its hidden state; when a later row goes deeper, all that wait at a layer enter it with
it. So whatever a row looks at was computed by all layers above, in the order of the text: a row that runs to the end
yields what it would yield if nobody had ever left early. (Filling the skipped layers' caches from the state at the exit
would be cheaper for lone exits, but an approximation whose result depends on who left where.)
"""

from collections.abc import Sequence

import torch

from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.hardware.exit_depths import ExitDepths
from serving.hardware.latency import ForwardLoad


class EarlyExitPass:
    """
    Args:
        slot: the session's cache, rolled back to where the rows begin.
        tokens: of the new rows.
        parents: where these form a tree, each one's parent among them, -1 for none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        cache: SequenceCache,
        tokens: Sequence[int],
        parents: tuple[int, ...] | None = None,
        importance: ImportanceCollector | None = None,
    ) -> None:
        self._runner, self._cache, self._parents, self._importance = runner, cache, parents, importance
        self._num_layers = len(runner.model.layers)
        if cache.exit_depths is None:
            cache.exit_depths = ExitDepths(self._num_layers)
            cache.exit_depths.append(cache.length, self._num_layers)
        self._exit_depths = cache.exit_depths
        self._hidden, self._num_new = runner.embed(tokens), len(tokens)
        self._num_cached, self._end, self._layers_run = cache.length, cache.length + len(tokens), 0

    def run_to(self, layer: int) -> torch.Tensor:
        """Runs on until `layer` layers have run; the new rows' hidden states, of shape (rows, hidden)."""
        while self._layers_run < layer:
            self._resume_suspended()
            last = min(layer, self._exit_depths.next_merge(self._layers_run))
            start = self._exit_depths.cached_at(self._layers_run)
            lot = RunnerInput(self._cache, self._end - start, self._tree_parents(self._num_cached - start), start)
            self._hidden = self._runner.run(self._hidden, [lot], self._layers_run, last, self._importance)
            self._layers_run = last
        return self._hidden[-self._num_new :]

    def _resume_suspended(self) -> None:
        """Who waits for this layer comes before those who waited higher up."""
        if count := self._exit_depths.num_suspended(self._layers_run):
            at = self._exit_depths.cached_at(self._layers_run) - (self._num_cached - self._exit_depths.num_incomplete)
            self._hidden = torch.cat(
                [*(one[None] for one in self._cache.suspended_hidden[at : at + count]), self._hidden]
            )

    def _tree_parents(self, num_resumed: int) -> tuple[int, ...] | None:
        """Parents of all rows, those that joined included: they are a chain from which the tree grows."""
        if self._parents is None:
            return None
        return (
            *range(-1, num_resumed - 1),
            *(num_resumed - 1 if one < 0 else one + num_resumed for one in self._parents),
        )

    def finish(self) -> tuple[ForwardLoad, ...]:
        """Ends here: the cache has grown by the new rows, some layers of which may be missing. What the layers did."""
        deeper = self._cache.suspended_hidden[: self._exit_depths.num_incomplete - (len(self._hidden) - self._num_new)]
        self._cache.suspended_hidden = [
            *deeper,
            *(self._hidden.unbind(0) if self._layers_run < self._num_layers else ()),
        ]
        self._cache.length = self._end
        loads = self._exit_depths.run_forward(self._num_new, self._layers_run)
        if self._importance is not None:
            self._importance.end_pass()
        return loads
