"""The request of the paper's Figure 5, and a router of known weights."""

from typing import Any

import numpy as np

from serving.learned.router import TokenRouter
from serving.policy.slots.routed_offload import RoutedOffload

WIDTH = 3


def question(**changes: Any) -> dict[str, Any]:
    """Figure 5's example, of the width that the router reads; a change to None leaves a field out."""
    shown: dict[str, Any] = {
        "version": 1,
        "context": "where is the red key? it is in the",
        "current_token": " box",
        "token_index": 15,
        "routing_threshold": 0.7,
        "slm_state": {"hidden_states": [0.5, 0.0, 0.0], "attention_states": [[0.1, 0.9], [1.0, 0.0]]},
        "llm_state": None,
        "history": {"previous_decisions": [{"token": "red", "route": "SLM"}, {"token": "key", "route": "LLM"}]},
        "meta_data": {"session_id": "session123", "request_id": "req456"},
    }
    return shown | changes


def state(*hidden: Any, **more: Any) -> dict[str, Any]:
    return {"hidden_states": list(hidden), **more}


def router(side: Any = "below", threshold: float = 0.5) -> TokenRouter:
    """The score is the sigmoid of the first number."""
    weight = np.array([[1.0, 0.0, 0.0]], np.float32)
    ones = np.ones(WIDTH, np.float32)
    layers = ((weight, np.zeros(1, np.float32)),)
    return TokenRouter(layers, np.zeros(WIDTH, np.float32), ones, threshold=threshold, side=side)


def routed(side: Any = "below", threshold: float | None = None, **how: Any) -> RoutedOffload:
    return RoutedOffload(router(side), threshold, **how)
