"""What the page offers of each policy, and who may share engines and names."""

import json
from dataclasses import replace

import pytest
from fake_setup import LAYERS, setup
from frontend.ui.tiny_page import offer, routed, router

from serving.deployment.topology import Topology
from serving.engines.remote.server import RemoteServer
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.config import PolicyCard
from serving.frontend.ui.run_request import parse_run_request
from serving.frontend.ui.ui_deployment import PrefixedTopology, engine_groups
from serving.policy.policy import NO_REQUIREMENTS


def test_a_policy_says_which_modes_it_has_and_why_it_has_no_slider() -> None:
    small = routed()
    small = replace(small, offload=replace(small.offload, mode="small_only"))  # type: ignore[type-var]
    offers = [offer(policy) for policy in (routed(), small, *(setup(n).policy for n in ("edge_centric", "synera")))]
    assert [offer.modes for offer in offers] == [
        ("joint", "small_only"), ("small_only",), ("small_only",), ("joint",)
    ]  # fmt: skip
    assert [bool(offer.as_json["router"]) for offer in offers] == [True, True, False, False]
    assert "the device writes everything" in offers[2].as_json["no_slider_reason"]


def test_the_policys_own_threshold_is_where_the_slider_stands_and_the_artifacts_is_marked() -> None:
    found = routed(found=router(threshold=0.3))
    found = replace(found, offload=replace(found.offload, threshold=0.7))  # type: ignore[type-var]
    about = offer(found).as_json["router"]
    assert (about["threshold"], about["artifact_threshold"]) == (0.7, 0.3)


def test_where_a_server_is_the_large_model_drafts_are_verified_greedily() -> None:
    """What a run is refused for later is refused before it begins, and said."""
    served = replace(setup().pair.cloud, server=RemoteServer(base_url="http://127.0.0.1:1/v1", model="m"))
    afar = PolicyCard(setup("sled", pair=replace(setup().pair, cloud=served)))
    warm = json.dumps({"policy": "sled", "prompt": "x", "temperature": 0.5}).encode()
    assert (afar.as_json["greedy"], PolicyCard(setup("sled")).as_json["greedy"]) == (True, False)
    with pytest.raises(ApiError, match="sled decodes greedily only"):
        parse_run_request(warm, {"sled": afar}, 8, 8)
    assert parse_run_request(warm, {"sled": PolicyCard(setup("sled"))}, 8, 8).sampling


def test_engines_that_are_shared_do_what_each_policy_needs() -> None:
    verifying = setup("sled").policy.engine_requirements
    for provisions in ({"a": NO_REQUIREMENTS, "b": verifying}, {"b": verifying, "a": NO_REQUIREMENTS}):
        ((names, both),) = engine_groups(provisions)
        assert (names, both.verifies_drafts) == (list(provisions), True)
    assert not engine_groups({"a": NO_REQUIREMENTS, "b": NO_REQUIREMENTS})[0][1].verifies_drafts


def test_two_routers_of_one_name_need_engines_of_their_own() -> None:
    first, second = (routed(found=router(seed=seed)).engine_requirements for seed in (1, 2))
    assert [names for names, _ in engine_groups({"a": first, "b": NO_REQUIREMENTS, "c": second})] == [["a", "b"], ["c"]]
    (names, both), = engine_groups({"b": NO_REQUIREMENTS, "a": first})  # fmt: skip
    assert (names, both.scorers.keys()) == (["b", "a"], {"route"})
    assert len(engine_groups({"a": NO_REQUIREMENTS, "b": replace(NO_REQUIREMENTS, block_tokens=32)})) == 2


def test_casts_of_one_driver_have_names_of_their_own() -> None:
    plain, other = Topology(setup(), LAYERS), PrefixedTopology(setup(), LAYERS, prefix="x.")
    assert plain.digest == other.digest
    assert other.devices == ("x.device-0", "x.device-1")
    assert other.workers == ("x.cloud-0",)
