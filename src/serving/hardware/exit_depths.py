"""How deep each cached token of a drafter is: who left early catches up when a later one goes deeper."""

from serving.hardware.latency import Load, load


class Depths:
    """Layers that each cached token has run; they never rise along the text, because a row that goes deep takes all
    before it along. So a layer's cache is whole up to where it ends, and nothing is ever approximated.

    Args:
        layers: of the model.
    """

    __slots__ = ("_layers", "_short", "_whole")

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._whole = 0
        """Tokens that have run all layers; the depths of those behind them follow."""
        self._short: list[int] = []

    def __len__(self) -> int:
        return self._whole + len(self._short)

    @property
    def short(self) -> int:
        """How many tokens, the last ones, have not run all layers."""
        return len(self._short)

    def waiting(self, depth: int) -> int:
        """How many tokens wait to enter layer number `depth`."""
        return self._short.count(depth)

    def truncate(self, length: int) -> None:
        """Rolls back to `length` tokens, of those that there are."""
        self._whole = min(self._whole, length)
        del self._short[length - self._whole :]

    def first_below(self, depth: int) -> int:
        """How many tokens have run more than `depth` layers: what layer number `depth` finds in its cache."""
        return self._whole + sum(one > depth for one in self._short)

    def next_join(self, depth: int) -> int:
        """The next layer after `depth` at which tokens wait to be taken along; the number of layers if none do."""
        return min((one for one in self._short if one > depth), default=self._layers)

    def grow(self, rows: int, ran: int) -> None:
        """`rows` tokens more, which ran `ran` layers and took along whoever was less deep."""
        depths = [*(max(one, ran) for one in self._short), *[ran] * rows]
        whole = sum(one == self._layers for one in depths)
        self._whole, self._short = self._whole + whole, depths[whole:]

    def passed(self, rows: int, ran: int) -> tuple[Load, ...]:
        """What `ran` layers do for `rows` new tokens and for those that are taken along; from now on they are there."""
        found, at, end = [], 0, len(self) + rows
        while at < ran:
            start, to = self.first_below(at), min(ran, self.next_join(at))
            found.append(load(to - at, [(start, end - start)]))
            at = to
        self.grow(rows, ran)
        return tuple(found)


def read(body: tuple[Load, ...], rows: int, vain: int) -> tuple[Load, ...]:
    """A pass whose last layers' `rows` went through the head, after `vain` checks that were not sure enough."""
    *upper, last = body
    checks = [Load(0.0, 0, 0, 0, float(rows))] * vain
    return (*upper, last._replace(head_rows=float(rows)), *checks)
