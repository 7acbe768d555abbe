"""The cloud's cost of a text: busy chip time at a price, and c = T W / Pf under both readings of W (Synera, 6.1)."""

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


CHUNK = {"accepted": 2, "corrected": 1, "device": 4}
"""A text of seven tokens: of four drafts two are accepted and one is corrected; the device keeps four more."""
TREE = {"accepted": 2, "bonus": 1}
"""Three tokens: of eight drafts in a tree a path of two is accepted."""
REPLACED = {"cloud": 1, "device": 3}
"""Four tokens: one draft of one token is not sent, and the cloud writes in its place."""
WHOLE = {"cloud": 7}
"""Seven tokens, all the cloud's: the first four drafts are thrown away."""
CASES = {
    "lossless": (CHUNK, {"drafted": 8, "drafts_verified": 4, "drafts_accepted": 2, "drafts_unused": 2,
                         "chunks": 2, "chunks_offloaded": 1, "chunks_verified": 1},
                 (5 / 7, 1 / 7, 0.5, 2.0, 2 / 8, 2.0)),
    "tree": (TREE, {"drafts_verified": 8, "drafts_accepted": 2, "chunks": 1, "chunks_offloaded": 1,
                    "chunks_verified": 1},
             (9 / 3, 1 / 3, 0.25, 2.0, None, 6.0)),
    "replace one": (REPLACED, {"drafted": 4, "drafts_replaced": 1, "drafts_unused": 1, "chunks": 4,
                               "chunks_offloaded": 1},
                    (1 / 4, 1 / 4, None, None, 1 / 4, None)),
    "replace all": (WHOLE, {"drafted": 4, "drafts_replaced": 4, "drafts_unused": 4, "chunks": 1,
                            "chunks_offloaded": 1},
                    (1.0, 1.0, None, None, 1.0, None)),
}  # fmt: skip
"""By hand: W verified, W generated, acceptance rate and length, share of wasted drafts, rejected in a verification."""


@pytest.mark.parametrize("choice", CASES)
def test_each_verify_choice_pays_for_what_the_cloud_computes(tmp_path, choice):
    """A draft that stays on the device is neither verified nor rejected, but wasted."""
    tokens, counts, expected = CASES[choice]
    origins = [origin for origin, n in tokens.items() for _ in range(n)]
    seen_s = [1.0 + 0.06 * n for n in range(len(origins))]
    found = summarise(Records.read(write(tmp_path, [request("r", origins, seen_s, **counts)])))
    keys = ("cost/w_verified", "cost/w_generated", "speculation/acceptance_rate", "speculation/acceptance_length",
            "speculation/wasted_share", "waste/rejected_tokens")  # fmt: skip
    assert tuple(found[key] for key in keys) == pytest.approx(expected)
    assert found["cost/verified_s"] == pytest.approx(0.06 / 6.0 * expected[0])
    assert found["cost/generated_s"] == pytest.approx(0.06 / 6.0 * expected[1])
    assert found["speculation/replaced"] == counts.get("drafts_replaced", 0)


def test_the_headline_cost_is_busy_chip_time_at_its_price(tmp_path):
    """Two chips a node, busy for 0.9 s in all, at 4 USD an hour: 0.002 USD for 8 tokens are 250 USD a million."""
    seen_s = [1.0 + 0.5 * n for n in range(4)]
    busy = {"cloud_busy_s": 0.45, "cloud_chip_s": 0.9, "cloud_usd": 0.001}
    rows = [request(name, ["cloud"] * 4, seen_s, **busy) for name in "ab"]
    found = summarise(Records.read(write(tmp_path, rows, cloud_nodes=3)))
    assert found["cost/usd_per_million_tokens"] == pytest.approx(250.0)
    assert found["cost/chip_s_per_token"] == pytest.approx(1.8 / 8)
    assert found["resources/cloud_busy_share"] == pytest.approx(0.9 / 2.5 / 3)


def test_a_slow_device_is_not_billed_to_the_cloud(tmp_path):
    """The same cloud time beside a device that takes twice as long: c doubles, the price does not."""
    busy = {"cloud_chip_s": 0.9, "cloud_usd": 0.001}
    quick, slow = (
        summarise(Records.read(write(tmp_path / name, [request("r", ["cloud", "device"], [s, 2 * s], **busy)])))
        for name, s in (("quick", 1.0), ("slow", 2.0))
    )
    assert slow["cost/generated_s"] == pytest.approx(2 * quick["cost/generated_s"])
    assert slow["cost/usd_per_million_tokens"] == quick["cost/usd_per_million_tokens"]


def test_without_a_price_the_cost_is_unknown(tmp_path):
    rows = [request("a", ["cloud"], [1.0], cloud_usd=0.001), request("b", ["cloud"], [1.0], cloud_usd=None)]
    assert summarise(Records.read(write(tmp_path, rows)))["cost/usd_per_million_tokens"] is None


def test_synera_s_cost_is_given_with_both_times_of_a_token(tmp_path):
    """A chunk of four that is shown at once: no gap within it, but three seconds of service."""
    row = request("r", ["accepted"] * 3 + ["bonus"], [3.0] * 4, drafts_verified=3, drafts_accepted=3)
    found = summarise(Records.read(write(tmp_path, [row])))
    assert (found["cost/verified_s"], found["cost/generated_s"]) == (0.0, 0.0)
    assert found["cost/verified_service_s"] == pytest.approx(0.75 / 6 * 1.0)
    assert found["cost/generated_service_s"] == pytest.approx(0.75 / 6 * 0.25)
