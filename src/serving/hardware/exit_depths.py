"""How deep each cached token of a drafter is: who left early catches up when a later one goes deeper."""

from serving.hardware.latency import ForwardLoad, batch_load


class ExitDepths:
    """Layers that each cached token has run; they never rise along the text, because a row that goes deep takes all
    before it along. So a layer's cache is whole up to where it ends, and nothing is ever approximated.

    Args:
        layers: of the model.
    """

    __slots__ = ("_incomplete_depths", "_layers", "_num_complete")

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._num_complete = 0
        """Tokens that have run all layers; the depths of those behind them follow."""
        self._incomplete_depths: list[int] = []

    def __len__(self) -> int:
        return self._num_complete + len(self._incomplete_depths)

    @property
    def num_incomplete(self) -> int:
        """How many tokens, the last ones, have not run all layers."""
        return len(self._incomplete_depths)

    def num_suspended(self, depth: int) -> int:
        """How many tokens wait to enter layer number `depth`."""
        return self._incomplete_depths.count(depth)

    def truncate(self, length: int) -> None:
        """Rolls back to `length` tokens, of those that there are."""
        self._num_complete = min(self._num_complete, length)
        del self._incomplete_depths[length - self._num_complete :]

    def cached_at(self, depth: int) -> int:
        """How many tokens have run more than `depth` layers: what layer number `depth` finds in its cache."""
        return self._num_complete + sum(one > depth for one in self._incomplete_depths)

    def next_merge(self, depth: int) -> int:
        """The next layer after `depth` at which tokens wait to be taken along; the number of layers if none do."""
        return min((one for one in self._incomplete_depths if one > depth), default=self._layers)

    def append(self, num_tokens: int, num_layers: int) -> None:
        """`num_tokens` tokens more, which ran `num_layers` layers and took along whoever was less deep."""
        depths = [*(max(one, num_layers) for one in self._incomplete_depths), *[num_layers] * num_tokens]
        whole = sum(one == self._layers for one in depths)
        self._num_complete, self._incomplete_depths = self._num_complete + whole, depths[whole:]

    def run_forward(self, num_tokens: int, num_layers: int) -> tuple[ForwardLoad, ...]:
        """What `num_layers` layers do for `num_tokens` new tokens and for those that are taken along; from now on they
        are there.
        """
        found, at, end = [], 0, len(self) + num_tokens
        while at < num_layers:
            start, to = self.cached_at(at), min(num_layers, self.next_merge(at))
            found.append(batch_load(to - at, [(start, end - start)]))
            at = to
        self.append(num_tokens, num_layers)
        return tuple(found)


def with_head_loads(loads: tuple[ForwardLoad, ...], num_tokens: int, failed_checks: int) -> tuple[ForwardLoad, ...]:
    """A pass whose last layers' `num_tokens` went through the head, after `failed_checks` checks that were not sure
    enough.
    """
    *upper, last = loads
    checks = [ForwardLoad(0.0, 0, 0, 0, float(num_tokens))] * failed_checks
    return (*upper, last._replace(head_tokens=float(num_tokens)), *checks)
