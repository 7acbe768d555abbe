"""A decision by the server's own router, on the state that it was shown and nothing else that a client says."""

from dataclasses import dataclass
from math import isfinite

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import Allowed
from serving.frontend.routing_api.schema import Asked, Route
from serving.frontend.routing_api.sessions import Handles
from serving.policy.slots.routed_offload import Routed

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    route: Route
    score: float
    threshold: float
    reasons: tuple[str, ...]


def decide(asked: Asked, context: Tokens, routed: Routed, allowed: Allowed, handles: Handles, client: str) -> Decision:
    """By the served policy's router; `context` are the server's own tokens of the text.

    Raises ApiError (400) for a state that the router cannot read.
    """
    router = routed.router
    if len(asked.hidden) != router.inputs:
        name = "slm_state.hidden_states"
        message = f"{name} is {len(asked.hidden)} wide; this server's router reads {router.inputs}"
        raise ApiError.invalid(message, name)
    score = router.chance(asked.hidden)
    if not isfinite(score):
        name = "slm_state.hidden_states"
        raise ApiError.invalid(f"{name} has no score: its numbers are too large for the router", name)
    at = allowed.threshold(asked.threshold, routed.at)
    beyond = router.routes(score, at)
    reasons = [f"score {score:.4f} is {'' if beyond else 'not '}{router.side} the threshold {at:g}"]
    if routed.mode == "small_only":
        reasons.append("this server routes nothing now (mode small_only)")
    if asked.threshold is not None and at != asked.threshold:
        reasons.append(f"routing_threshold {asked.threshold:g} was moved into {allowed.low:g} to {allowed.high:g}")
    reasons += _ignored(asked, context, handles, client)
    return Decision("LLM" if beyond and routed.mode == "joint" else "SLM", score, at, tuple(reasons))


def _ignored(asked: Asked, context: Tokens, handles: Handles, client: str) -> list[str]:
    """What was said and does not fit; none of it counts for the decision in any case."""
    found = []
    if asked.handle and (why := handles.problem(asked.handle, client, asked.session, context)):
        found.append(f"llm_state was ignored: {why}")
    if (at := _stray(asked)) is not None:
        found.append(f"history was ignored: its token {at} is not in the context behind those before it")
    if asked.token_index != len(context):
        found.append(f"token_index was ignored: the context is {len(context)} tokens here")
    return found


def _stray(asked: Asked) -> int | None:
    """The first token of the history that the context does not hold in this order."""
    position = 0
    for i, past in enumerate(asked.history):
        at = asked.context.find(past.token, position)
        if at < 0:
            return i
        position = at + len(past.token)
    return None
