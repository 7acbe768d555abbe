"""What the page offers of each policy, and who may share engines and names."""

import json
from dataclasses import replace

import pytest
from fake_setup import LAYERS, setup
from page.made import offer, routed, router

from serving.deployment.topology import Cast
from serving.engines.remote.server import Server
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.device_pool import NamedCast, shares
from serving.frontend.ui.policy_card import Offer
from serving.frontend.ui.question import question
from serving.policy.engine_requirements import PLAIN


def test_a_policy_says_which_modes_it_has_and_why_it_has_no_slider() -> None:
    small = routed()
    small = replace(small, offload=replace(small.offload, mode="small_only"))  # type: ignore[type-var]
    offers = [offer(policy) for policy in (routed(), small, *(setup(n).policy for n in ("edge_centric", "synera")))]
    assert [offer.modes for offer in offers] == [
        ("joint", "small_only"), ("small_only",), ("small_only",), ("joint",)
    ]  # fmt: skip
    assert [bool(offer.about["router"]) for offer in offers] == [True, True, False, False]
    assert "the device writes everything" in offers[2].about["no_slider"]


def test_the_policys_own_threshold_is_where_the_slider_stands_and_the_artifacts_is_marked() -> None:
    found = routed(found=router(threshold=0.3))
    found = replace(found, offload=replace(found.offload, threshold=0.7))  # type: ignore[type-var]
    about = offer(found).about["router"]
    assert (about["threshold"], about["artifact_threshold"]) == (0.7, 0.3)


def test_where_a_server_is_the_large_model_drafts_are_verified_greedily() -> None:
    """What a run is refused for later is refused before it begins, and said."""
    served = replace(setup().pair.cloud, server=Server(base_url="http://127.0.0.1:1/v1", model="m"))
    afar = Offer(setup("sled", pair=replace(setup().pair, cloud=served)))
    warm = json.dumps({"policy": "sled", "prompt": "x", "temperature": 0.5}).encode()
    assert (afar.about["greedy"], Offer(setup("sled")).about["greedy"]) == (True, False)
    with pytest.raises(ApiError, match="sled decodes greedily only"):
        question(warm, {"sled": afar}, 8, 8)
    assert question(warm, {"sled": Offer(setup("sled"))}, 8, 8).sampling


def test_engines_that_are_shared_do_what_each_policy_needs() -> None:
    verifying = setup("sled").policy.provision
    for provisions in ({"a": PLAIN, "b": verifying}, {"b": verifying, "a": PLAIN}):
        ((names, both),) = shares(provisions)
        assert (names, both.verifies) == (list(provisions), True)
    assert not shares({"a": PLAIN, "b": PLAIN})[0][1].verifies


def test_two_routers_of_one_name_need_engines_of_their_own() -> None:
    first, second = (routed(found=router(seed=seed)).provision for seed in (1, 2))
    assert [names for names, _ in shares({"a": first, "b": PLAIN, "c": second})] == [["a", "b"], ["c"]]
    (names, both), = shares({"b": PLAIN, "a": first})  # fmt: skip
    assert (names, both.scorers.keys()) == (["b", "a"], {"route"})
    assert len(shares({"a": PLAIN, "b": replace(PLAIN, block_tokens=32)})) == 2


def test_casts_of_one_driver_have_names_of_their_own() -> None:
    plain, other = Cast(setup(), LAYERS), NamedCast(setup(), LAYERS, prefix="x.")
    assert plain.digest == other.digest
    assert other.devices == ("x.device-0", "x.device-1")
    assert other.workers == ("x.cloud-0",)
