"""Service-level objectives: classes of token rate and time to first token, and their assignment to requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isclose

from serving.core.keyed_random import key, uniform


@dataclass(frozen=True, kw_only=True)
class SloClass:
    """A `share` of the requests gets at least `tokens_per_s` and the first token within `ttft_s` (None: no promise).

    WISP's classes (section 5.3, Table 2) are 2, 4, 6 and 8 tokens/s.
    """

    name: str
    tokens_per_s: float
    ttft_s: float | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.tokens_per_s < inf:
            raise ValueError(f"SLO class {self.name}: tokens_per_s must be above 0, got {self.tokens_per_s}")
        if self.ttft_s is not None and not 0 < self.ttft_s < inf:
            raise ValueError(f"SLO class {self.name}: ttft_s must be above 0 seconds or null, got {self.ttft_s}")
        if not 0 < self.share <= 1:
            raise ValueError(f"SLO class {self.name}: share must be above 0 and at most 1, got {self.share}")


def check_classes(classes: Sequence[SloClass]) -> None:
    """Raises ValueError if names repeat or shares do not add up to 1; no classes are allowed."""
    names = [each.name for each in classes]
    if len(set(names)) < len(names):
        raise ValueError(f"workload.slo names a class twice: {', '.join(names)}")
    total = sum(each.share for each in classes)
    if classes and not isclose(total, 1, abs_tol=1e-6):
        raise ValueError(f"the shares of workload.slo must add up to 1, got {total:g} ({', '.join(names)})")


def assign_classes(classes: Sequence[SloClass], n: int, seed: int) -> list[SloClass | None]:
    """Assigns a class to each of `n` requests in random order; each class gets its share to within one request."""
    if not classes:
        return [None] * n
    stream = key(seed, "slo")
    order = sorted(range(n), key=lambda index: uniform(stream, index, "class"))
    bounds = [round(n * share) for share in accumulate(each.share for each in classes)]
    assigned: list[SloClass | None] = [None] * n
    for start, end, each in zip([0, *bounds], bounds, classes, strict=False):
        for index in order[start:end]:
            assigned[index] = each
    return assigned
