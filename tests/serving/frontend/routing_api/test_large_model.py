"""Large-only requests on a real device node and its cloud: the large model writes the answer."""

from collections.abc import Callable
from typing import Any

from serving.frontend.routing_api.handler import UNVERIFIED
from serving.messages import RoutingOptions
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.verify import Lossless, Replace
from tests.serving.frontend.routing_api.examples import routed
from tests.serving.frontend.test_device_gateway import PROMPT, GatewayDevice, run_scenario, text
from tests.support.fake_pair import own_text

ROUTED_SLOTS: dict[str, Any] = {"draft": WindowDraft(1), "verify": Replace(), "link_loss": LinkLoss("local")}


def run_routed_scenario(scenario: Callable[[GatewayDevice], Any], **how: Any) -> None:
    run_scenario(scenario, "sled", **{**ROUTED_SLOTS, "offload": routed(), **how})


async def large_only_deltas(s: GatewayDevice, limit: int = 6) -> list[Any]:
    options = RoutingOptions(large_only=True)
    return [piece async for piece in s.gateway.generate(PROMPT, limit, None, None, options)]


def test_a_large_only_answer_is_the_clouds_text() -> None:
    async def scenario(s: GatewayDevice) -> None:
        pieces = await large_only_deltas(s)
        assert text(pieces) == own_text(PROMPT, 6)
        assert {origin for piece in pieces for origin in piece.origins} == {"cloud"}

    run_routed_scenario(scenario)


def test_with_lossless_verification_no_token_is_unverified() -> None:
    async def scenario(s: GatewayDevice) -> None:
        pieces = await large_only_deltas(s)
        assert text(pieces) == own_text(PROMPT, 6)
        found = {origin for piece in pieces for origin in piece.origins}
        assert found
        assert not found & UNVERIFIED

    run_routed_scenario(scenario, verify=Lossless())


def test_in_small_only_mode_the_device_writes() -> None:
    async def scenario(s: GatewayDevice) -> None:
        assert {origin for piece in await large_only_deltas(s) for origin in piece.origins} == {"device"}

    run_routed_scenario(scenario, offload=routed(mode="small_only"))


def test_the_gateway_exposes_the_router() -> None:
    async def scenario(s: GatewayDevice) -> None:
        found = s.gateway.routed
        assert found
        assert (found.scorer.name, found.scorer.num_features) == ("route", 3)

    run_routed_scenario(scenario)


def test_a_policy_without_routing_has_no_router() -> None:
    async def scenario(s: GatewayDevice) -> None:
        assert s.gateway.routed is None

    run_scenario(scenario)
