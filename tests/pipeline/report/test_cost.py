"""The cloud's cost of a text under both readings of W (Synera, section 6.1)."""

import pytest

from pipeline.report.records import Records
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import request, write


@pytest.fixture
def cost(tmp_path):
    def cost(tokens, verified, tbt_s, factor):
        """(W verified, W generated, cost of each) of tokens that came `tbt_s` after one another."""
        origins = [origin for origin, n in tokens.items() for _ in range(n)]
        seen_s = [1.0 + (tbt_s or 0.0) * n for n in range(len(origins))]
        gaps = {} if tbt_s else {"tbt_s": []}
        pf = factor and {"value": factor, "source": "a test"}
        folder = write(tmp_path, [request("r", origins, seen_s, drafts_verified=verified, **gaps)], packing_factor=pf)
        found = summarise(Records.read(folder))
        return tuple(found[f"cost/{name}"] for name in ("w_verified", "w_generated", "verified_s", "generated_s"))

    return cost


def test_the_cloud_alone_has_w_one_under_both_readings(cost):
    assert cost({"cloud": 50}, 0, 0.06, 6.0) == (1.0, 1.0, pytest.approx(0.01), pytest.approx(0.01))


def test_full_acceptance_of_every_draft_verifies_as_much_as_the_cloud_would_write(cost):
    """Ten verifications of four drafts each: forty accepted, ten bonus tokens."""
    assert cost({"accepted": 40, "bonus": 10}, 40, 0.06, 6.0)[:2] == (1.0, 0.2)


def test_rejected_drafts_cost_verification_and_no_text(cost):
    """One verification of four drafts, one accepted, one corrected; two more tokens by the device."""
    found = cost({"device": 2, "accepted": 1, "corrected": 1}, 4, 0.12, 6.0)
    assert found == (5 / 4, 1 / 4, pytest.approx(0.02 * 5 / 4), pytest.approx(0.02 / 4))


def test_the_device_alone_costs_nothing(cost):
    assert cost({"device": 9}, 0, 0.05, 6.0) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("tbt_s", "factor"), [(None, 6.0), (0.05, None)])
def test_without_a_packing_factor_only_the_shares_are_known(cost, tbt_s, factor):
    assert cost({"cloud": 5}, 0, tbt_s, factor) == (1.0, 1.0, None, None)
