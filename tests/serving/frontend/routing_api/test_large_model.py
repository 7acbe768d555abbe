"""Large-only requests on a real device node and its cloud: the large model writes the answer."""

from collections.abc import Callable
from typing import Any

from serving.frontend.routing_api.handler import UNVERIFIED
from serving.messages import RoutingOptions
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.verify import Lossless, Replace
from tests.serving.frontend.routing_api.examples import routed
from tests.serving.frontend.test_device_gateway import PROMPT, Stage, played, text
from tests.support.fake_pair import own_text

HOW: dict[str, Any] = {"draft": WindowDraft(1), "verify": Replace(), "link_loss": LinkLoss("local")}


def asked(scene: Callable[[Stage], Any], **how: Any) -> None:
    played(scene, "sled", **{**HOW, "offload": routed(), **how})


async def written(s: Stage, limit: int = 6) -> list[Any]:
    wish = RoutingOptions(large_only=True)
    return [piece async for piece in s.gateway.generate(PROMPT, limit, None, None, wish)]


def test_a_large_only_answer_is_the_clouds_text() -> None:
    async def scene(s: Stage) -> None:
        pieces = await written(s)
        assert text(pieces) == own_text(PROMPT, 6)
        assert {origin for piece in pieces for origin in piece.origins} == {"cloud"}

    asked(scene)


def test_with_lossless_verification_no_token_is_unverified() -> None:
    async def scene(s: Stage) -> None:
        pieces = await written(s)
        assert text(pieces) == own_text(PROMPT, 6)
        found = {origin for piece in pieces for origin in piece.origins}
        assert found
        assert not found & UNVERIFIED

    asked(scene, verify=Lossless())


def test_in_small_only_mode_the_device_writes() -> None:
    async def scene(s: Stage) -> None:
        assert {origin for piece in await written(s) for origin in piece.origins} == {"device"}

    asked(scene, offload=routed(mode="small_only"))


def test_the_gateway_exposes_the_router() -> None:
    async def scene(s: Stage) -> None:
        found = s.gateway.routed
        assert found
        assert (found.scorer.name, found.scorer.num_features) == ("route", 3)

    asked(scene)


def test_a_policy_without_routing_has_no_router() -> None:
    async def scene(s: Stage) -> None:
        assert s.gateway.routed is None

    played(scene)
