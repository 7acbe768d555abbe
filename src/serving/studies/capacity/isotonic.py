"""Monotone regression: the violation rate rises with the number of devices, however noisy its measurements are."""

from collections.abc import Sequence


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted squares, by pooling adjacent violators (Barlow et
    al., Statistical Inference under Order Restrictions, 1972).
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = value, weight, 1
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, n = pools.pop()
            total = mass + pool[1]
            pool = (mean * mass + pool[0] * pool[1]) / total, total, n + pool[2]
        pools.append(pool)
    return [mean for mean, _, n in pools for _ in range(n)]


def crossing(places: Sequence[float], values: Sequence[float], weights: Sequence[float], level: float) -> float:
    """The largest place at which the rising sequence through `values` is at most `level`, between two places by a
    straight line; the first or the last place where it never is, or always.

    `places` rise strictly.
    """
    fitted = rising(values, weights)
    over = next((i for i, value in enumerate(fitted) if value > level), len(fitted))
    if over in (0, len(fitted)):
        return places[0] if over == 0 else places[-1]
    a, b = fitted[over - 1], fitted[over]
    return places[over - 1] + (places[over] - places[over - 1]) * (level - a) / (b - a)
