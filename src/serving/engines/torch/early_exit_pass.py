"""A pass of a drafter whose tokens may leave before the last layer; passes of several sessions run together.

A token that exits early keeps its hidden state. When a later token goes deeper, all tokens suspended at a layer enter
it first. So every key and value is computed by all layers below it, in text order, and a token that runs all layers
yields what it would yield without any early exit. (Filling the skipped layers' caches from the exit state would be
cheaper, but an approximation that depends on where earlier tokens left.)
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
        cache: the session's cache, rolled back to where the new tokens begin.
        tokens: the new tokens.
        parents: for a tree, each new token's parent among them, -1 for none.
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

    @property
    def hidden(self) -> torch.Tensor:
        """The new tokens' hidden states behind the layers that have run, (tokens, hidden)."""
        return self._hidden[-self._num_new :]

    def run_to(self, layer: int) -> torch.Tensor:
        """Continues until `layer` layers have run. Returns the new tokens' hidden states, (tokens, hidden)."""
        run_together([self], layer)
        return self.hidden

    def _input(self) -> RunnerInput:
        """The tokens that enter the next layer, suspended ones first."""
        self._resume_suspended()
        start = self._exit_depths.cached_at(self._layers_run)
        parents = self._tree_parents(self._num_cached - start)
        return RunnerInput(self._cache, self._end - start, parents, start, self._importance)

    def _resume_suspended(self) -> None:
        """Prepends tokens suspended at this layer; they precede the current ones in text order."""
        if count := self._exit_depths.num_suspended(self._layers_run):
            at = self._exit_depths.cached_at(self._layers_run) - (self._num_cached - self._exit_depths.num_incomplete)
            self._hidden = torch.cat(
                [*(one[None] for one in self._cache.suspended_hidden[at : at + count]), self._hidden]
            )

    def _tree_parents(self, num_resumed: int) -> tuple[int, ...] | None:
        """Parents of all tokens: the resumed ones are a chain from which the tree grows."""
        if self._parents is None:
            return None
        return (
            *range(-1, num_resumed - 1),
            *(num_resumed - 1 if one < 0 else one + num_resumed for one in self._parents),
        )

    def finish(self) -> tuple[ForwardLoad, ...]:
        """Ends the pass: the cache grows by the new tokens, of which layers may be missing. Returns the loads."""
        deeper = self._cache.suspended_hidden[: self._exit_depths.num_incomplete - (len(self._hidden) - self._num_new)]
        self._cache.suspended_hidden = [
            *deeper,
            # A copy: a view would keep the states of all sessions that ran together.
            *(self._hidden.clone().unbind(0) if self._layers_run < self._num_layers else ()),
        ]
        self._cache.length = self._end
        loads = self._exit_depths.run_forward(self._num_new, self._layers_run)
        if self._importance is not None:
            self._importance.end_pass()
        return loads


def run_together(passes: Sequence[EarlyExitPass], layer: int) -> None:
    """Continues passes of one model, each of its own session, until `layer` layers have run. They have run as many."""
    while passes and (begin := passes[0]._layers_run) < layer:
        inputs = [each._input() for each in passes]
        end = min(layer, *(each._exit_depths.next_merge(begin) for each in passes))
        hidden = passes[0]._hidden if len(passes) == 1 else torch.cat([each._hidden for each in passes])
        hidden = passes[0]._runner.run(hidden, inputs, begin, end)
        for each, part in zip(passes, hidden.split_with_sizes([entry.num_tokens for entry in inputs]), strict=True):
            each._hidden, each._layers_run = part, end
