"""What a browser asks for, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.schema import Fields, parse, printable
from serving.frontend.ui.policy_card import Offer
from serving.messages import Routing, Sampling

_LARGEST_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Question:
    """One run, before its prompt is tokens."""

    offer: Offer
    prompt: str
    max_tokens: int
    sampling: Sampling | None
    routing: Routing | None
    """None where the policy has no router."""

    @property
    def threshold(self) -> float | None:
        """The very number that scores are compared with; None where nothing is routed by a score."""
        routed = self.offer.routed
        if not routed or not self.routing or self.routing.small_only:
            return None
        return routed.at if self.routing.threshold is None else self.routing.threshold

    @property
    def needs_cloud(self) -> bool:
        """Is there no answer without the cloud?"""
        return self.mode == "joint" and self.offer.policy.link_loss.action != "local"

    @property
    def mode(self) -> str:
        alone = self.offer.modes == ("small_only",) or (self.routing is not None and self.routing.small_only)
        return "small_only" if alone else "joint"


def question(raw: bytes, offers: Mapping[str, Offer], max_tokens: int, usual: int) -> Question:
    """At most `max_tokens`, and `usual` where nothing is said. Raises ApiError (400) that names the field at fault."""
    fields = parse(raw)
    offer = _offer(fields, offers)
    found = Question(
        offer,
        fields.text("prompt"),
        fields.integer("max_tokens", 1, max_tokens) or usual,
        _sampling(fields, offer),
        _routing(fields, offer),
    )
    if fields.rest:
        name = printable(min(fields.rest))
        raise ApiError(400, f"the page knows no field {name}; leave it out", "unknown_parameter", name)
    return found


def _offer(fields: Fields, offers: Mapping[str, Offer]) -> Offer:
    name = fields.text("policy")
    if name not in offers:
        raise ApiError.invalid(f"the policy {name!r} is not on this page; there are {', '.join(offers)}", "policy")
    return offers[name]


def _sampling(fields: Fields, offer: Offer) -> Sampling | None:
    temperature = fields.number("temperature", 0.0, 0, 2)
    seed = fields.integer("seed", -_LARGEST_SEED - 1, _LARGEST_SEED) or 0
    if temperature and offer.greedy:
        raise ApiError.invalid(f"{offer.name} decodes greedily only; set temperature 0", "temperature")
    return Sampling(temperature, 0, 1.0, seed) if temperature else None


def _routing(fields: Fields, offer: Offer) -> Routing | None:
    mode = _mode(fields.take("mode"), offer)
    given = fields.body.get("threshold")
    threshold = fields.number("threshold", 0.0, 0, 1)
    if given is not None and not offer.routed:
        raise ApiError.invalid(f"{offer.name} has no router, so no threshold; leave it out", "threshold")
    return Routing(None if given is None else threshold, mode == "small_only") if offer.routed else None


def _mode(mode: Any, offer: Offer) -> str:
    if mode is None:
        return offer.modes[0]
    if mode not in offer.modes:
        raise ApiError.invalid(f"mode is {mode!r}; {offer.name} knows {' and '.join(offer.modes)}", "mode")
    return str(mode)
