"""The body of `POST /api/runs`, parsed and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.core.decoding import MIN_TEMPERATURE
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.schema import RequestFields, parse_body, printable
from serving.frontend.ui.config import PolicyCard
from serving.messages import RoutingOptions, SamplingParams

_MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class RunRequest:
    """One run, before its prompt is tokenized."""

    policy_card: PolicyCard
    prompt: str
    max_tokens: int
    sampling: SamplingParams | None
    routing: RoutingOptions | None
    """None if the policy has no router."""

    @property
    def threshold(self) -> float | None:
        """The number that scores are compared with; None if no score decides."""
        routed = self.policy_card.routed
        if not routed or not self.routing or self.routing.small_only:
            return None
        return routed.effective_threshold if self.routing.threshold is None else self.routing.threshold

    @property
    def needs_cloud(self) -> bool:
        """True if there is no answer without the cloud."""
        return self.mode == "joint" and self.policy_card.policy.link_loss.action != "local"

    @property
    def mode(self) -> str:
        device_only = self.policy_card.modes == ("small_only",) or (
            self.routing is not None and self.routing.small_only
        )
        return "small_only" if device_only else "joint"


def parse_run_request(
    raw: bytes, policy_cards: Mapping[str, PolicyCard], max_tokens: int, default_max_tokens: int
) -> RunRequest:
    """Raises ApiError (400) that names the field at fault.

    Args:
        max_tokens: the highest limit that a request may name.
        default_max_tokens: the limit of a request that names none.
    """
    fields = parse_body(raw)
    card = _policy_card(fields, policy_cards)
    found = RunRequest(
        card,
        fields.text("prompt"),
        fields.integer("max_tokens", 1, max_tokens) or default_max_tokens,
        _sampling(fields, card),
        _routing(fields, card),
    )
    if fields.unread:
        name = printable(min(fields.unread))
        raise ApiError(400, f"the page knows no field {name}; leave it out", "unknown_parameter", name)
    return found


def _policy_card(fields: RequestFields, policy_cards: Mapping[str, PolicyCard]) -> PolicyCard:
    name = fields.text("policy")
    if name not in policy_cards:
        raise ApiError.invalid(
            f"the policy {name!r} is not on this page; there are {', '.join(policy_cards)}", "policy"
        )
    return policy_cards[name]


def _sampling(fields: RequestFields, card: PolicyCard) -> SamplingParams | None:
    temperature = fields.number("temperature", 0.0, 0, 2)
    seed = fields.integer("seed", -_MAX_SEED - 1, _MAX_SEED) or 0
    if temperature < MIN_TEMPERATURE:
        return None
    if card.greedy:
        raise ApiError.invalid(f"{card.name} decodes greedily only; set temperature 0", "temperature")
    return SamplingParams(temperature, 0, 1.0, seed)


def _routing(fields: RequestFields, card: PolicyCard) -> RoutingOptions | None:
    mode = _mode(fields.take("mode"), card)
    given = fields.body.get("threshold")
    threshold = fields.number("threshold", 0.0, 0, 1)
    if given is not None and not card.routed:
        raise ApiError.invalid(f"{card.name} has no router, so no threshold; leave it out", "threshold")
    return RoutingOptions(None if given is None else threshold, mode == "small_only") if card.routed else None


def _mode(mode: Any, card: PolicyCard) -> str:
    if mode is None:
        return card.modes[0]
    if mode not in card.modes:
        raise ApiError.invalid(f"mode is {mode!r}; {card.name} knows {' and '.join(card.modes)}", "mode")
    return str(mode)
