"""The page's cards of policies, and which policies may share engines and names."""

import json
from dataclasses import replace

import pytest

from serving.deployment.topology import Topology
from serving.engines.remote.server import RemoteServer
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.config import PolicyCard
from serving.frontend.ui.run_request import parse_run_request
from serving.frontend.ui.ui_deployment import PrefixedTopology, engine_groups
from serving.policy.policy import NO_REQUIREMENTS
from serving.policy.slots.placement import ColocatedPlacement
from tests.serving.frontend.ui.tiny_page import card, routed, router
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup


def test_a_card_has_modes_and_the_reason_for_no_slider() -> None:
    small = routed()
    small = replace(small, offload=replace(small.offload, mode="small_only"))  # type: ignore[type-var]
    cards = [card(policy) for policy in (routed(), small, *(setup(n).policy for n in ("edge_centric", "synera")))]
    assert [card.modes for card in cards] == [
        ("joint", "small_only"), ("small_only",), ("small_only",), ("joint",)
    ]  # fmt: skip
    assert [bool(card.as_json["router"]) for card in cards] == [True, True, False, False]
    assert "the device writes everything" in cards[2].as_json["no_slider_reason"]


def test_a_card_says_which_side_drafts() -> None:
    colocated = replace(setup("sled").policy, placement=ColocatedPlacement())
    found = [card(policy).as_json["description"] for policy in (setup("sled").policy, colocated)]
    assert found == [
        "the device drafts, and the cloud checks every draft", "the cloud drafts for itself, and checks every draft"
    ]  # fmt: skip


def test_a_card_has_the_policys_and_the_artifacts_threshold() -> None:
    found = routed(found=router(threshold=0.3))
    found = replace(found, offload=replace(found.offload, threshold=0.7))  # type: ignore[type-var]
    about = card(found).as_json["router"]
    assert (about["threshold"], about["artifact_threshold"]) == (0.7, 0.3)


def test_sampling_is_refused_if_a_remote_server_is_the_large_model() -> None:
    """The refusal comes before the run begins."""
    served = replace(setup().pair.cloud, server=RemoteServer(base_url="http://127.0.0.1:1/v1", model="m"))
    remote = PolicyCard(setup("sled", pair=replace(setup().pair, cloud=served)))
    warm = json.dumps({"policy": "sled", "prompt": "x", "temperature": 0.5}).encode()
    assert (remote.as_json["greedy"], PolicyCard(setup("sled")).as_json["greedy"]) == (True, False)
    with pytest.raises(ApiError, match="sled decodes greedily only"):
        parse_run_request(warm, {"sled": remote}, 8, 8)
    assert parse_run_request(warm, {"sled": PolicyCard(setup("sled"))}, 8, 8).sampling


def test_shared_engines_meet_the_requirements_of_each_policy() -> None:
    verifying = setup("sled").policy.engine_requirements
    for provisions in ({"a": NO_REQUIREMENTS, "b": verifying}, {"b": verifying, "a": NO_REQUIREMENTS}):
        ((names, both),) = engine_groups(provisions)
        assert (names, both.verifies_drafts) == (list(provisions), True)
    assert not engine_groups({"a": NO_REQUIREMENTS, "b": NO_REQUIREMENTS})[0][1].verifies_drafts
    undrafted = replace(NO_REQUIREMENTS, drafter=False)
    ((names, both),) = engine_groups({"a": undrafted, "b": NO_REQUIREMENTS})
    assert (names, both.drafter) == (["a", "b"], True)


def test_two_routers_of_one_name_need_engines_of_their_own() -> None:
    first, second = (routed(found=router(seed=seed)).engine_requirements for seed in (1, 2))
    assert [names for names, _ in engine_groups({"a": first, "b": NO_REQUIREMENTS, "c": second})] == [["a", "b"], ["c"]]
    (names, both), = engine_groups({"b": NO_REQUIREMENTS, "a": first})  # fmt: skip
    assert (names, both.scorers.keys()) == (["b", "a"], {"route"})
    assert len(engine_groups({"a": NO_REQUIREMENTS, "b": replace(NO_REQUIREMENTS, block_tokens=32)})) == 2


def test_prefixed_topologies_have_different_node_names() -> None:
    plain, other = Topology(setup(), LAYERS), PrefixedTopology(setup(), LAYERS, prefix="x.")
    assert plain.digest == other.digest
    assert other.devices == ("x.device-0", "x.device-1")
    assert other.workers == ("x.cloud-0",)
