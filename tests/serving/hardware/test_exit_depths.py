"""Exit depths of tokens, against caches that are kept layer by layer."""

import random

import pytest

from serving.hardware.exit_depths import ExitDepths, with_head_loads
from serving.hardware.latency import ForwardLoad, batch_load

LAYERS = 5


class Caches:
    """Per layer the tokens that it has; a row that enters takes along every token that the layer lacks."""

    def __init__(self) -> None:
        self.layers: list[list[int]] = [[] for _ in range(LAYERS)]
        self.length = 0

    def truncate(self, length: int) -> None:
        self.length = length
        self.layers = [[token for token in layer if token < length] for layer in self.layers]

    def passed(self, rows: int, ran: int) -> list[tuple[int, int]]:
        """Per layer that ran how many tokens it had, and how many entered it."""
        self.length += rows
        found = []
        for layer in self.layers[:ran]:
            entering = [token for token in range(self.length) if token not in layer]
            assert entering == list(range(len(layer), self.length)), "a hole in a layer's cache"
            found.append((len(layer), len(entering)))
            layer += entering
        return found


def by_layer(loads: tuple[ForwardLoad, ...]) -> list[ForwardLoad]:
    return [one._replace(layers=1, num_continued=0) for one in loads for _ in range(int(one.layers))]


@pytest.mark.parametrize("seed", range(20))
def test_every_layer_runs_the_tokens_that_it_has_not_cached(seed: int) -> None:
    draw, ledger, caches = random.Random(seed), ExitDepths(LAYERS), Caches()
    for _ in range(80):
        if draw.random() < 0.4:
            length = draw.randint(max(0, len(ledger) - draw.choice((1, 3, 100))), len(ledger))
            ledger.truncate(length)
            caches.truncate(length)
        rows, ran = draw.choice((1, 1, 1, 4)), draw.randint(1, LAYERS)
        waiting = [ledger.num_suspended(layer) for layer in range(LAYERS)]
        assert (
            sum(waiting)
            == ledger.num_incomplete
            == sum(token not in caches.layers[-1] for token in range(caches.length))
        )
        loads = ledger.run_forward(rows, ran)
        assert by_layer(loads) == [batch_load(1, [span]) for span in caches.passed(rows, ran)]
        assert len(ledger) == caches.length
        assert [ledger.cached_at(layer) for layer in range(LAYERS)] == [len(layer) for layer in caches.layers]


def test_failed_exit_checks_cost_a_pass_through_the_head() -> None:
    ledger = ExitDepths(4)
    assert with_head_loads(ledger.run_forward(3, 3), 1, 1) == (
        batch_load(3, [(0, 3)], 1.0),
        ForwardLoad(0.0, 0, 0, 0, 1.0, num_continued=1),
    )
    assert with_head_loads(ledger.run_forward(1, 4), 2, 0) == (
        batch_load(3, [(3, 1)]), batch_load(1, [(0, 4)], 2.0)._replace(num_continued=1),
    )  # fmt: skip
