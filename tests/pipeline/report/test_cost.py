import pytest

from pipeline.report.cost import CloudCost, estimate_cost
from pipeline.report.records import ORIGINS

NONE = dict.fromkeys(ORIGINS, 0)


def test_the_cloud_alone_has_w_one_under_both_readings():
    assert estimate_cost(NONE | {"cloud": 50}, 0, 0.06, 6.0) == CloudCost(
        1.0, 1.0, pytest.approx(0.01), pytest.approx(0.01)
    )


def test_full_acceptance_of_every_draft_verifies_as_much_as_the_cloud_would_write():
    """Ten verifications of four drafts each: forty accepted, ten bonus tokens."""
    cost = estimate_cost(NONE | {"accepted": 40, "bonus": 10}, 40, 0.06, 6.0)
    assert (cost.w_verified, cost.w_generated) == (1.0, 0.2)


def test_rejected_drafts_cost_verification_and_no_text():
    """One verification of four drafts, one accepted, one corrected; two more tokens by the device."""
    cost = estimate_cost(NONE | {"device": 2, "accepted": 1, "corrected": 1}, 4, 0.12, 6.0)
    assert cost == CloudCost(5 / 4, 1 / 4, pytest.approx(0.02 * 5 / 4), pytest.approx(0.02 / 4))


def test_the_device_alone_costs_nothing():
    assert estimate_cost(NONE | {"device": 9}, 0, 0.05, 6.0) == CloudCost(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("tbt_s", "factor"), [(None, 6.0), (0.05, None)])
def test_what_is_not_known_has_no_cost_but_its_shares(tbt_s, factor):
    assert estimate_cost(NONE | {"cloud": 5}, 0, tbt_s, factor) == CloudCost(1.0, 1.0, None, None)
