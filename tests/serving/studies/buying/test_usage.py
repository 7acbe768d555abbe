"""What users' tokens take, by hand."""

from dataclasses import replace

import pytest

from serving.studies.buying.usage import Usage, busy_share

USAGE = Usage(tokens_per_day=8640.0, active_share=0.1)


@pytest.mark.parametrize(
    ("users", "capacity", "chips"), [(100, 10.0, 1), (101, 10.0, 2), (1000, 3.3, 31), (5, 40.0, 1)]
)
def test_clouds_are_whole_and_carry_the_users_of_the_busiest_minutes(users: int, capacity: float, chips: int) -> None:
    assert USAGE.clouds(users, capacity) == chips


def test_the_fewest_users_keep_one_cloud() -> None:
    assert replace(USAGE, active_share=1e-6).clouds(1, 1024.0) == 1


def test_tokens_and_joules_add_up_over_users_and_days() -> None:
    assert USAGE.tokens_per_month(10) == pytest.approx(86400 * 365 / 12)
    assert USAGE.device_j_per_day(0.5) == pytest.approx(4320)


def test_chips_are_busy_with_the_tokens_of_a_day() -> None:
    """10 users' 86,400 tokens, 2 ms each, are 172.8 s; of two chips' two days a thousandth."""
    assert busy_share(USAGE, 10, 0.002, 2) == pytest.approx(0.001)


def test_a_usage_may_contradict_the_speed_that_users_get() -> None:
    """8,640 tokens at 1 token/s are a tenth of the day: as much as the busiest minutes have."""
    assert USAGE.contradiction(1.0) == ""
    assert "keep a user waiting 0.2 of the day" in USAGE.contradiction(0.5)


@pytest.mark.parametrize(
    ("tokens", "share", "why"), [(0.0, 0.5, "tokens_per_day"), (1.0, 0.0, "active_share"), (1.0, 1.1, "active_share")]
)
def test_a_usage_without_tokens_or_users_is_refused(tokens: float, share: float, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Usage(tokens, share)
