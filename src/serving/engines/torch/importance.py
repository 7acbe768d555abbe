"""How much a draft leans on each of its own tokens: column sums of attention (Synera, importance-based offloading)."""

import torch
from torch.nn.functional import pad


class ImportanceCollector:
    """Gathers the attention that the last rows of a pass pay to every column, averaged over heads and probed layers.

    Args:
        layers: the probed layers; at least one must be run in every pass.
    """

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._num_observed = 1
        self._layer_attention: list[torch.Tensor] = []
        self.passes: list[torch.Tensor] = []
        """One tensor a pass, of shape (rows looked at, columns)."""

    def observe_last(self, num_tokens: int) -> None:
        """How many of the last rows of the next pass to look at."""
        self._num_observed, self._layer_attention = num_tokens, []

    def observe(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, scaling: float, mask: torch.Tensor | None
    ) -> None:
        """Called per layer by the attention function with the queries, keys and mask of its one session.

        Shapes: `query` (1, heads, rows, head size), `keys` (1, KV heads, columns, head size), `mask` (rows, columns).
        """
        if layer not in self._layers:
            return
        chosen = query[0, :, -self._num_observed :]
        shape = (keys.shape[1], chosen.shape[0] // keys.shape[1], chosen.shape[1], keys.shape[2])
        scores = (chosen.reshape(shape[0], -1, chosen.shape[2]) @ keys[0].transpose(1, 2)).mul_(scaling).view(shape)
        if mask is not None:
            scores = scores + mask[-self._num_observed :]
        elif query.shape[2] > 1:  # a plain triangle
            ahead = torch.ones(shape[2:], dtype=torch.bool, device=scores.device).triu(shape[3] - shape[2] + 1)
            scores = scores.masked_fill(ahead, float("-inf"))
        self._layer_attention.append(scores.softmax(-1, dtype=torch.float32).mean((0, 1)))

    def end_pass(self) -> None:
        """Averages over layers; a sliding window shows fewer columns, the last ones."""
        columns = max(seen.shape[1] for seen in self._layer_attention)
        self.passes.append(
            torch.stack([pad(seen, (columns - seen.shape[1], 0)) for seen in self._layer_attention]).mean(0)
        )

    def draft_importance(self, num_adopted: int, num_drafted: int) -> tuple[float, ...]:
        """Per token of a draft the mean attention that its rows at or after that token pay to it.

        The draft is `num_adopted` tokens that were written before and `num_drafted` new ones. All but the last are fed:
        of the former as the last rows of the first pass, each new one in a pass of its own. The last token gets the
        mean of the others; where nothing is fed, the row that wrote the token, seen by itself, stands in.
        """
        tokens = num_adopted + num_drafted
        if tokens < 2:
            return tuple(float(self.passes[0][-1, -1]) for _ in range(tokens))
        sums = torch.zeros(tokens - 1)
        fed = self.passes[0].shape[0] if num_adopted else 0
        if fed:
            n = min(fed, tokens - 1)
            sums[:n] += self.passes[0][-fed:, -fed:][:n, :n].sum(0).cpu()
        for i, seen in enumerate(self.passes[1:num_drafted], fed + 1):
            own = seen[-1, -i:]
            sums[i - own.shape[0] : i] += own.cpu()
        means: list[float] = (sums / torch.arange(tokens - 1, 0, -1)).tolist()
        return (*means, sum(means) / len(means))
