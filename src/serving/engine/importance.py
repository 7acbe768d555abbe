"""How much a draft leans on each of its own tokens: column sums of attention (Synera, importance-based offloading)."""

import torch
from torch.nn.functional import pad


class Importance:
    """Gathers the attention that chosen rows pay to every column, averaged over heads and probed layers.

    Args:
        layers: the probed layers; at least one must be run in every pass.
    """

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._rows: torch.Tensor | None = None
        self._seen: list[torch.Tensor] = []
        self.passes: list[torch.Tensor] = []
        """One tensor a pass, of shape (chosen rows, columns)."""

    def choose(self, rows: torch.Tensor | None) -> None:
        """The rows of the next pass to look at; None: the last one."""
        self._rows, self._seen = rows, []

    def look(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, scaling: float, mask: torch.Tensor | None
    ) -> None:
        """Called per layer by the attention function with the queries, keys and mask of its one session.

        Shapes: `query` (1, heads, rows, head size), `keys` (1, KV heads, columns, head size), `mask` (rows, columns).
        """
        if layer not in self._layers:
            return
        chosen = query[0, :, -1:] if self._rows is None else query[0].index_select(1, self._rows)
        shape = (keys.shape[1], chosen.shape[0] // keys.shape[1], chosen.shape[1], keys.shape[2])
        scores = (chosen.reshape(shape[0], -1, chosen.shape[2]) @ keys[0].transpose(1, 2)).mul_(scaling).view(shape)
        if mask is not None:
            scores = scores + (mask[-1:] if self._rows is None else mask.index_select(0, self._rows))
        self._seen.append(scores.softmax(-1, dtype=torch.float32).mean((0, 1)))

    def end_pass(self) -> None:
        """Averages over layers; a sliding window shows fewer columns, the last ones."""
        columns = max(seen.shape[1] for seen in self._seen)
        self.passes.append(torch.stack([pad(seen, (columns - seen.shape[1], 0)) for seen in self._seen]).mean(0))

    def chunk(self, drafted: int) -> tuple[float, ...]:
        """Per drafted token the mean attention that fed-back rows at or after it pay to it.

        The first pass wrote the first token, each later one fed a token back. The last token is never fed back and gets
        the mean of the others; where nothing was fed back, the row that wrote the token, seen by itself, stands in.
        """
        if not drafted:
            return ()
        fed = drafted - 1
        if not fed:
            return (float(self.passes[0][-1, -1]),)
        sums = torch.zeros(fed)
        for i, seen in enumerate(self.passes[1 : fed + 1]):
            own = seen[-1, -(i + 1) :]
            sums[i + 1 - own.shape[0] : i + 1] += own.cpu()
        means: list[float] = (sums / torch.arange(fed, 0, -1)).tolist()
        return (*means, sum(means) / fed)

    def own(self, columns: list[int]) -> tuple[float, ...]:
        """Per chosen row of the last pass what it pays to one column."""
        last = self.passes[-1]
        return tuple(float(last[row, column]) for row, column in enumerate(columns))
