"""Playing a policy without clocks: the same decisions as with them."""

from fake_setup import models, queries, setup

from serving.outcomes.offline import CONCURRENT, play
from serving.runtimes import emulated


def test_offline_play_decides_the_same() -> None:
    timed = emulated.play(setup("sled"), models(), queries(CONCURRENT + 3))
    played = play(setup("sled").policy, models(), queries(CONCURRENT + 3), 0, lambda done, total, note: None)
    assert {n: r.tokens for n, r in played.items()} == {n: r.tokens for n, r in timed.items()}
    chunks = {n: [c.accepted for c in r.chunks] for n, r in played.items()}
    assert chunks == {n: [c.accepted for c in r.chunks] for n, r in timed.items()}


def test_offline_play_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    play(setup("sled").policy, models(), queries(3), 0, lambda done, total, note: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
