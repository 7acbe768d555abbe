"""Layers that each cached token of an early-exit drafter has run; later, deeper tokens take earlier ones along."""

from serving.hardware.latency import ForwardLoad, batch_load


class ExitDepths:
    """Layers that each cached token has run.

    Depths never increase along the text, because a token that goes deeper takes all earlier tokens along. So each
    layer's cache has no gaps, and nothing is approximated.
    """

    __slots__ = ("_incomplete_depths", "_layers", "_num_complete")

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._num_complete = 0
        """Tokens that have run all layers; `_incomplete_depths` holds the depths of the later ones."""
        self._incomplete_depths: list[int] = []

    def __len__(self) -> int:
        return self._num_complete + len(self._incomplete_depths)

    @property
    def num_incomplete(self) -> int:
        """Number of tokens, the last ones, that have not run all layers."""
        return len(self._incomplete_depths)

    def num_suspended(self, depth: int) -> int:
        """Number of tokens that are suspended before layer `depth`."""
        return self._incomplete_depths.count(depth)

    def truncate(self, length: int) -> None:
        """Rolls back to at most `length` tokens."""
        self._num_complete = min(self._num_complete, length)
        del self._incomplete_depths[length - self._num_complete :]

    def cached_at(self, depth: int) -> int:
        """Number of tokens that have run more than `depth` layers: the cached length at layer `depth`."""
        return self._num_complete + sum(one > depth for one in self._incomplete_depths)

    def next_merge(self, depth: int) -> int:
        """The next layer after `depth` before which tokens are suspended; the number of layers if there is none."""
        return min((one for one in self._incomplete_depths if one > depth), default=self._layers)

    def append(self, num_tokens: int, num_layers: int) -> None:
        """Appends `num_tokens` tokens that ran `num_layers` layers and took less deep tokens along."""
        depths = [*(max(one, num_layers) for one in self._incomplete_depths), *[num_layers] * num_tokens]
        num_complete = sum(one == self._layers for one in depths)
        self._num_complete, self._incomplete_depths = self._num_complete + num_complete, depths[num_complete:]

    def run_forward(self, num_tokens: int, num_layers: int) -> tuple[ForwardLoad, ...]:
        """Appends `num_tokens` tokens that run `num_layers` layers. Returns the loads, tokens taken along included."""
        loads, layer, length = [], 0, len(self) + num_tokens
        while layer < num_layers:
            cached, next_layer = self.cached_at(layer), min(num_layers, self.next_merge(layer))
            load = batch_load(next_layer - layer, [(cached, length - cached)])
            loads.append(load._replace(num_continued=1) if layer else load)
            layer = next_layer
        self.append(num_tokens, num_layers)
        return tuple(loads)


def with_head_loads(loads: tuple[ForwardLoad, ...], num_tokens: int, failed_checks: int) -> tuple[ForwardLoad, ...]:
    """Adds the head's load of `num_tokens` tokens to a pass: after the last layers, and in each failed exit check."""
    *upper, last = loads
    checks = [ForwardLoad(0.0, 0, 0, 0, float(num_tokens), num_continued=1)] * failed_checks
    return (*upper, last._replace(head_tokens=float(num_tokens)), *checks)
