"""Where drafts are made follows from the testbed."""

from dataclasses import fields, replace

import pytest

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.hardware.latency import LinearLatency
from serving.hardware.testbed import Testbed as Bed
from serving.network.link import Link
from serving.policy.by_condition import (
    CloudPrediction,
    DevicePrediction,
    ExpectedLoad,
    PlacedPolicy,
    PolicyByCondition,
)
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.scheduler import StaticBatch
from serving.workload.slo import SloClass
from tests.support.conf_files import bed, fleet, link
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import pair, setup
from tests.support.policies import policy

DEVICE = policy("sled", draft=WindowDraft(8))
SLOTS = {each.name: getattr(policy("sled", placement=ColocatedPlacement()), each.name) for each in fields(Policy)}
ONLY_PASSES = ExpectedLoad(acceptance=0, prompt_tokens=1, answer_tokens=16)
"""No draft is right: each round writes one token."""


HAT = {"drafter": "vicuna_68m", "target": "vicuna_7b"}


def by_condition(device: Policy | None = DEVICE, **expected: float) -> PolicyByCondition:
    return PolicyByCondition(**SLOTS | {"name": "either"}, device=device, expected=ExpectedLoad(**expected))


def placed(
    hardware: str | Bed,
    devices: int = 2,
    device: Policy | None = DEVICE,
    drafter: str = "tinyllama_1_1b",
    target: str = "llama2_13b",
    network: Link | None = None,
) -> Setup:
    base = setup("sled", hardware, devices, pair=pair(drafter, target), network=network or link("wifi"))
    return replace(base, policy=by_condition(device))


def constant(seconds: float) -> LinearLatency:
    """A pass takes as long whatever it computes."""
    return LinearLatency(0, 0, 0, seconds, layers=1, source="test")


def test_a_slow_drafter_far_from_an_idle_cloud_is_not_asked() -> None:
    found = placed("jetson_orin").policy
    assert isinstance(found, PlacedPolicy)
    assert (found.name, found.case, found.is_colocated, found.draft) == ("either", "", True, SLOTS["draft"])
    assert "in the cloud: a token is predicted to take" in found.reason


def test_devices_that_draft_fast_draft_where_a_cloud_is_busy() -> None:
    assert placed("hat", 1, **HAT).policy.is_colocated
    found = placed("hat", 30, **HAT).policy
    assert isinstance(found, PlacedPolicy)
    assert (found.name, found.case, found.is_colocated, found.draft) == ("either", "device", False, WindowDraft(8))


def test_another_number_of_devices_is_decided_anew() -> None:
    busy = placed("hat", 30, **HAT)
    idle = replace(busy, workload=replace(busy.workload, devices=1))
    assert (busy.policy.is_colocated, idle.policy.is_colocated) == (False, True)


def test_slots_that_were_replaced_stay_replaced_on_another_testbed() -> None:
    """As a load test replaces the scheduler, and a study a number of drafts."""
    found = placed("hat", 30, **HAT)
    one_by_one = StaticBatch(max_num_seqs=1, window_s=0)
    timed = replace(found, policy=replace(found.policy, scheduler=one_by_one, draft=WindowDraft(2)))
    idle = replace(timed, workload=replace(timed.workload, devices=1))
    for each, colocated in ((timed, False), (idle, True)):
        policy = each.policy
        assert (policy.scheduler, policy.draft, policy.is_colocated) == (one_by_one, WindowDraft(2), colocated)


def test_hosts_that_decide_alike_are_of_one_deployment() -> None:
    """What they predict may differ, as their own clocks do."""
    near, far = placed("jetson_orin"), placed("jetson_orin", network=link("lte"))
    assert isinstance(near.policy, PlacedPolicy)
    assert isinstance(far.policy, PlacedPolicy)
    assert near.policy.reason != far.policy.reason
    assert Topology(near, LAYERS).digest == Topology(far, LAYERS).digest


def test_a_settled_policy_stays_where_it_is() -> None:
    """In a draw of the clock a policy that was chosen by the clock as it is known is not chosen anew."""
    busy = placed("hat", 30, **HAT)
    idle = replace(busy, policy=busy.policy.settled, workload=replace(busy.workload, devices=1))
    assert not idle.policy.is_colocated
    assert DEVICE.settled is DEVICE


def test_chips_of_its_own_for_the_drafter_need_hold_one_model_each() -> None:
    small = Bed(device=fleet("jetson_agx_orin_32gb"), cloud=fleet("jetson_agx_orin_32gb", mode="MAXN"))
    apart = replace(by_condition(), placement=ColocatedPlacement(drafter="apart"))
    found = apart.on_testbed(pair("vicuna_7b"), small, setup().network, setup().workload)
    assert "does not hold both models" not in found.reason


def test_on_a_testbed_of_tiers_devices_draft() -> None:
    tiers = bed("hyperion").tiers
    far = Bed(device=fleet("jetson_agx_orin_32gb"), tiers={"far": next(iter(tiers.values()))})
    found = by_condition().on_testbed(pair(), far, setup().network, setup().workload)
    assert not found.is_colocated
    assert found.reason == "either: drafts are made on devices: in front of the tiers far"


def test_a_chip_that_holds_the_target_alone_verifies() -> None:
    small = Bed(device=fleet("jetson_agx_orin_32gb"), cloud=fleet("jetson_agx_orin_32gb", mode="MAXN"))
    found = by_condition().on_testbed(pair("vicuna_7b"), small, setup().network, setup().workload)
    assert found.reason == "either: drafts are made on devices: jetson_agx_orin_32gb does not hold both models"


def test_a_promised_first_token_that_devices_would_miss_keeps_drafts_in_the_cloud() -> None:
    far = placed("hat", 30, **HAT)
    kept, missed = (replace(far.workload, slo=(SloClass(name="all", tokens_per_s=4, ttft_s=s),)) for s in (5, 0.02))
    assert not replace(far, workload=kept).policy.is_colocated
    found = replace(far, workload=missed).policy
    assert isinstance(found, PlacedPolicy)
    assert found.is_colocated
    assert "drafts are made in the cloud: behind a prompt of 16 tokens the first is predicted after 0." in found.reason
    assert found.reason.endswith(" s if devices draft, and it is promised within 0.02 s")


def test_longer_drafts_than_a_policy_makes_are_not_considered() -> None:
    cloud = CloudPrediction(constant(0.020), constant(0.005), 1, ExpectedLoad(acceptance=0.95))
    assert cloud.s_per_token(1) > cloud.s_per_token(2) > cloud.s_per_token(6)


def test_a_device_without_figures_of_the_drafter_leaves_drafts_to_the_cloud() -> None:
    models = pair("qwen2_5_0_5b", "qwen3_32b")
    found = by_condition().on_testbed(models, bed("wisp"), setup().network, setup().workload)
    assert found.is_colocated
    assert "has no coefficients for qwen2_5_0_5b" in found.reason


def test_chips_that_a_stage_will_profile_are_not_asked_while_it_is_planned() -> None:
    bed_of = Bed(device=fleet("local", timing="profile"), cloud=fleet("rtx_a6000"))
    found = by_condition().on_testbed(pair(), bed_of, setup().network, setup().workload)
    assert found.is_colocated
    assert "as far as is known before the chips are profiled" in found.reason


def test_without_another_policy_the_cloud_drafts() -> None:
    assert placed("hat", 30, None, **HAT).policy.is_colocated


def test_a_policy_of_one_place_stays_what_it_is() -> None:
    base = setup("sled")
    assert base.policy is replace(base, seed=1).policy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance": 1.0}, "policy.expected.acceptance is 1; it is a share, 0 to below 1"),
        ({"prompt_tokens": 0}, "policy.expected.prompt_tokens is 0; it must be at least 1"),
        ({"answer_tokens": 0}, "policy.expected.answer_tokens is 0; it must be at least 1"),
    ],
)
def test_what_is_expected_is_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpectedLoad(**options)


def test_a_cloud_that_drafts_pays_for_its_passes_and_for_a_first_round() -> None:
    """One draft a round is best where none is right: 17 rounds of a pass and a step for 16 tokens."""
    found = CloudPrediction(constant(0.020), constant(0.005), 1, ONLY_PASSES).s_per_token(6)
    assert found == pytest.approx(17 / 16 * 0.025)


def test_a_device_that_drafts_waits_for_the_link_and_for_the_pass_before_its_own() -> None:
    cloud = CloudPrediction(constant(0.020), constant(0.005), 1, ONLY_PASSES)
    found = DevicePrediction(
        draft_s=0.010, prompt_s=0.032, round_trip_s=0.030, first_token_s=1, cloud=cloud
    ).s_per_token(16)
    assert found == pytest.approx(0.010 + 0.030 + 0.032 / 16 + 1.5 * 0.020)


def test_more_right_drafts_take_less_time() -> None:
    models = constant(0.020), constant(0.005)
    found = [CloudPrediction(*models, 4, ExpectedLoad(acceptance=share)).s_per_token(6) for share in (0.3, 0.6, 0.9)]
    assert found == sorted(found, reverse=True)
