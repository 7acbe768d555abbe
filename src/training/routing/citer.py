"""CITER's router: preferences as the Bradley-Terry model sees them, a threshold for a share of the tokens.

How Co-LLM's deferral learns, as configuration says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving.core.scores import ThresholdSide
from serving.learned.mlp import NumpyMLP
from serving.learned.router import TokenRouter
from serving.progress import Progress
from training.embedded_pair.draft_quality import auc
from training.fitting.trainer import Trainer
from training.routing.states import RoutingSplit, RoutingStates
from training.wisp.mlp import MLP


def train(
    split: RoutingSplit,
    latest_round: RoutingStates,
    mlp: MLP,
    routed_share: float,
    seed: int,
    trainer: Trainer,
    progress: Progress,
) -> TokenRouter:
    """Learns from the states of all rounds in `split`; the threshold is of those of the `latest_round` round.

    With rewards r_S and r_L of the two actions, P(S preferred) = sigmoid(r_S - r_L) (Bradley-Terry): one logit, and
    the cross-entropy of the preferences is the loss. Under the prior (1 - tau, tau) the posterior prefers S where
    (1 - tau) pi_S >= tau (1 - pi_S), that is where pi_S >= tau: tau is a threshold on the score.
    """
    network, how = mlp.fit_network(split.train, split.validation, seed, trainer, progress)
    held_out, test = (
        latest_round.with_preference().for_prompts(part.used_prompt_ids) for part in (split.validation, split.test)
    )
    return build_router(network, "citer", "below", held_out, test, routed_share, how)


def build_router(
    network: NumpyMLP,
    family: str,
    side: ThresholdSide,
    held_out: RoutingStates,
    test: RoutingStates,
    routed_share: float,
    training_metrics: Mapping[str, Any],
) -> TokenRouter:
    """A router whose threshold sends `routed_share` of the held-out states, with what it does on the test states."""
    scores = tuple(np.sort(network.probabilities(held_out.hidden)).tolist())
    found = TokenRouter(network.layers, network.mean, network.std, side=side, family=family, heldout_scores=scores)
    found = replace(found, threshold=min(1.0, max(0.0, found.threshold_for(routed_share))))
    return replace(found, metrics={**training_metrics, "routed_share": routed_share, "test": router_metrics(found, test)})


def router_metrics(router: TokenRouter, test: RoutingStates) -> dict[str, float | int | None]:
    """How well scores tell in which states the large model is preferred."""
    scores = router.probabilities(test.hidden)
    wanted = ~test.small_preferred
    routed = np.array([router.routes(score) for score in scores.tolist()], np.bool_)
    return {
        "states": len(test),
        "large_preferred": float(wanted.mean()),
        "auc": auc(-scores if router.side == "below" else scores, wanted),
        "routed_share": float(routed.mean()),
        "precision": float(wanted[routed].mean()) if routed.any() else None,
        "recall": float(routed[wanted].mean()) if wanted.any() else None,
    }


@dataclass(frozen=True)
class CoLLMRecipe:
    """How the deferral learns. Raises ValueError for a value out of range."""

    learning_rate: float = 1e-2
    """Of the head alone (Adam)."""
    batch_size: int = 256
    epochs: int = 40
    """At most, of each of the two objectives."""
    patience: int = 5
    joint_learning_rate: float = 2e-4
    """Of the small model and the head together (AdamW)."""
    joint_batch_size: int = 16
    """Texts."""
    joint_epochs: int = 6

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "patience", "joint_batch_size", "joint_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "joint_learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"recipe.{name} must be above 0, got {getattr(self, name)}")
