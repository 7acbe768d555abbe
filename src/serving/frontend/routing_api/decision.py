"""A decision by the server's own router, on the state that it was shown and nothing else that a client says."""

from dataclasses import dataclass
from math import isfinite

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import RoutingLimits
from serving.frontend.routing_api.schema import Route, RoutingRequest
from serving.frontend.routing_api.sessions import StateHandles
from serving.policy.slots.routed_offload import RoutedOffload

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class RoutingDecision:
    route: Route
    score: float
    threshold: float
    reasons: tuple[str, ...]


def decide(
    request: RoutingRequest,
    context: TokenIds,
    routed: RoutedOffload,
    limits: RoutingLimits,
    handles: StateHandles,
    client: str,
) -> RoutingDecision:
    """By the served policy's router; `context` are the server's own tokens of the text.

    Raises ApiError (400) for a state that the router cannot read.
    """
    router = routed.router
    if len(request.hidden_state) != router.num_features:
        name = "slm_state.hidden_states"
        message = f"{name} is {len(request.hidden_state)} wide; this server's router reads {router.num_features}"
        raise ApiError.invalid(message, name)
    score = router.probability(request.hidden_state)
    if not isfinite(score):
        name = "slm_state.hidden_states"
        raise ApiError.invalid(f"{name} has no score: its numbers are too large for the router", name)
    at = limits.clamp_threshold(request.threshold, routed.effective_threshold)
    beyond = router.routes(score, at)
    reasons = [f"score {score:.4f} is {'' if beyond else 'not '}{router.side} the threshold {at:g}"]
    if routed.mode == "small_only":
        reasons.append("this server routes nothing now (mode small_only)")
    if request.threshold is not None and at != request.threshold:
        reasons.append(
            f"routing_threshold {request.threshold:g} was moved into {limits.min_threshold:g} to {limits.max_threshold:g}"
        )
    reasons += _ignored_fields(request, context, handles, client)
    return RoutingDecision("LLM" if beyond and routed.mode == "joint" else "SLM", score, at, tuple(reasons))


def _ignored_fields(request: RoutingRequest, context: TokenIds, handles: StateHandles, client: str) -> list[str]:
    """What was said and does not fit; none of it counts for the decision in any case."""
    found = []
    if request.state_handle and (why := handles.mismatch(request.state_handle, client, request.session_id, context)):
        found.append(f"llm_state was ignored: {why}")
    if (at := _first_mismatch(request)) is not None:
        found.append(f"history was ignored: its token {at} is not in the context behind those before it")
    if request.token_index != len(context):
        found.append(f"token_index was ignored: the context is {len(context)} tokens here")
    return found


def _first_mismatch(request: RoutingRequest) -> int | None:
    """The first token of the history that the context does not hold in this order."""
    position = 0
    for i, past in enumerate(request.history):
        at = request.context.find(past.token, position)
        if at < 0:
            return i
        position = at + len(past.token)
    return None
