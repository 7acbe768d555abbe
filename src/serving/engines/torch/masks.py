"""Which cached tokens a row may see, as additive masks that are views of one strip."""

import torch

_SMALLEST = 128


class Masks:
    """Causal masks of shape (rows, tokens), 0 where a row may look and -inf where not.

    Entry (i, j) of a strip that begins at column `past` allows j <= i + past; every mask behind any number of cached
    tokens is a part of it, so nothing is built in the decode loop. SDPA would turn a bool mask into this form in every
    layer anew.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._strips: dict[int | None, torch.Tensor] = {}

    def causal(self, past: int, rows: int, window: int | None) -> torch.Tensor:
        """The mask of `rows` new tokens behind `past` cached ones, of shape (rows, past + rows)."""
        strip = self._strips.get(window)
        if strip is None or strip.shape[0] < rows or strip.shape[1] - strip.shape[0] < past:
            strip = self._strips[window] = self._strip(past, rows, window, strip)
        offset = strip.shape[1] - strip.shape[0]
        return strip[:rows, offset - past : offset + rows]

    def _strip(self, past: int, rows: int, window: int | None, old: torch.Tensor | None) -> torch.Tensor:
        height, offset = (old.shape[0], old.shape[1] - old.shape[0]) if old is not None else (8, _SMALLEST)
        height, offset = max(height, rows), offset if offset >= past else 2 * past
        i = torch.arange(height, device=self._device)[:, None]
        j = torch.arange(offset + height, device=self._device)[None] - offset
        allowed = j <= i
        if window:
            allowed &= j > i - window
        return self.additive(allowed)

    def tree(self, past: int, parents: tuple[int, ...], depths: list[int], window: int | None) -> torch.Tensor:
        """The mask of a tree of rows behind `past` cached tokens: a row sees those, its ancestors and itself.

        `parents` gives each row's parent row, -1 for none; `depths` its distance from the first root, which decides
        what a sliding window still covers.
        """
        ancestors = torch.eye(len(parents), dtype=torch.bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                ancestors[row] |= ancestors[parent]
        allowed = torch.cat([torch.ones(len(parents), past, dtype=torch.bool), ancestors], 1)
        if window:
            at = torch.tensor(depths) + past
            keys = torch.cat([torch.arange(past), at])
            allowed &= keys[None] > at[:, None] - window
        return self.additive(allowed.to(self._device))

    def additive(self, allowed: torch.Tensor) -> torch.Tensor:
        return torch.zeros(allowed.shape, dtype=self._dtype, device=self._device).masked_fill_(~allowed, float("-inf"))
