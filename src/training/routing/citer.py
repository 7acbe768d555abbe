"""CITER's router: preferences as the Bradley-Terry model sees them, and a threshold for a share of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from serving.core.scores import ThresholdSide
from serving.learned.mlp import NumpyMLP
from serving.learned.router import TokenRouter
from serving.progress import Progress
from training.fitting.cluster_statistics import auc
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
    """Learns from the states of all rounds in `split`; the threshold is chosen on states of `latest_round`.

    States without a preference count for the threshold: they are routed, too, when the router serves, and both models
    failed in them, so that they are harder than the others.

    With rewards r_S and r_L of the two actions, P(S preferred) = sigmoid(r_S - r_L) (Bradley-Terry): one logit, and
    the cross-entropy of the preferences is the loss. Under the prior (1 - tau, tau) the posterior prefers S where
    (1 - tau) pi_S >= tau (1 - pi_S), that is where pi_S >= tau: tau is a threshold on the score.
    """
    network, training_metrics = mlp.fit_network(split.train, split.validation, seed, trainer, progress)
    held_out = latest_round.for_prompts(split.validation.used_prompt_ids)
    test = latest_round.with_preference().for_prompts(split.test.used_prompt_ids)
    return build_router(network, "citer", "below", held_out, test, routed_share, training_metrics)


def build_router(
    network: NumpyMLP,
    family: str,
    side: ThresholdSide,
    held_out: RoutingStates,
    test: RoutingStates,
    routed_share: float,
    training_metrics: Mapping[str, Any],
) -> TokenRouter:
    """A router whose threshold routes `routed_share` of the held-out states, with its metrics on the test states."""
    scores = tuple(np.sort(network.probabilities(held_out.hidden)).tolist())
    found = TokenRouter(network.layers, network.mean, network.std, side=side, family=family, heldout_scores=scores)
    found = replace(found, threshold=min(1.0, max(0.0, found.threshold_for(routed_share))))
    return replace(
        found, metrics={**training_metrics, "routed_share": routed_share, "test": router_metrics(found, test)}
    )


def router_metrics(router: TokenRouter, test: RoutingStates) -> dict[str, float | int | None]:
    """How well the scores detect the states in which the large model is preferred."""
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
