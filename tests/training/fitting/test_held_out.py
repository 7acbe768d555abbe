"""The split into training, validation and test parts."""

import pytest

from training.fitting.held_out import random_split

SHARES = (0.8, 0.1, 0.1)


@pytest.mark.parametrize("n", [3, 10, 48, 240])
def test_every_member_is_in_exactly_one_part(n: int) -> None:
    members = [f"p{i}" for i in range(n)]
    parts = random_split(members, SHARES, 0)
    assert sorted(name for part in parts for name in part) == sorted(members)
    assert [len(part) for part in parts[1:]] == [max(1, round(0.1 * n))] * 2


@pytest.mark.parametrize("n", [0, 1, 2])
def test_with_too_few_members_the_training_part_is_empty(n: int) -> None:
    train, *held_out = random_split(range(n), SHARES, 0)
    assert train == []
    assert sum(map(len, held_out)) == n


def test_the_split_is_random_and_decided_by_the_seed() -> None:
    assert (
        random_split(range(50), SHARES, 1) == random_split(range(50), SHARES, 1) != random_split(range(50), SHARES, 2)
    )
