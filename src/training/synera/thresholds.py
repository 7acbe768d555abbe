"""Synera's offline profiling (section 5): the policy that verifies every draft, and thresholds from its decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from serving.core.scores import IMPORTANCE, IMPORTANCE_SCORES
from serving.core.session import Session
from serving.learned.thresholds import Thresholds, nearest_rank
from serving.messages import DraftDecision, EarlyExitRule
from serving.outcomes.record import target_only
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.policy.slots.importance_offload import p_confidence
from serving.policy.slots.uncertainty_offload import perplexity


@dataclass(frozen=True)
class ProfilingOffload:
    """Every draft is verified, and its scores are recorded."""

    requested_scores: tuple[str, ...]
    scope: ClassVar[Literal["all"]] = "all"

    def tokens_to_offload(self, session: Session) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class ProfilingExit:
    """The drafter skips layers as it does when it is served; no draft is withheld from the cloud."""

    layer_exit: EarlyExitRule | None
    has_sequence_exit: ClassVar[bool] = False

    def past_sequence_exit(self, session: Session) -> bool:  # noqa: ARG002
        return False


def profiling_policy(
    draft: Draft, early_exit: EarlyExit, requested_scores: tuple[str, ...] = ("confidence", *IMPORTANCE_SCORES)
) -> Policy:
    """The policy whose drafts are profiled: `draft` as it is served, and nothing else that could interfere."""
    return replace(
        target_only(),
        name="profiling",
        draft=draft,
        offload=ProfilingOffload(requested_scores),
        early_exit=ProfilingExit(early_exit.layer_exit),
    )


def mean_score(decision: DraftDecision, name: str) -> float:
    values = decision.scores[name]
    return sum(values) / len(values)


def importance_aucs(decisions: Sequence[DraftDecision]) -> dict[str, float]:
    """By reading of importance, its AUC for drafts that are not fully accepted; without drafts of both kinds, empty."""
    import numpy as np

    from training.fitting.cluster_statistics import auc

    cut = np.array([each.accepted != len(each.tokens) for each in decisions])
    found = {name: auc(np.array([mean_score(each, name) for each in decisions]), cut) for name in readings(decisions)}
    return {name: value for name, value in found.items() if value is not None}


def readings(decisions: Sequence[DraftDecision]) -> tuple[str, ...]:
    """The readings of importance that all drafts have."""
    return tuple(name for name in IMPORTANCE_SCORES if all(name in each.scores for each in decisions))


def full_drafts(decisions: Sequence[DraftDecision]) -> list[DraftDecision]:
    """The drafts of the greatest length."""
    longest = max((len(each.tokens) for each in decisions), default=0)
    return [each for each in decisions if len(each.tokens) == longest]


def quantile_threshold(decisions: Sequence[DraftDecision], quantile: float) -> float:
    """c_th: a quantile (nearest rank) of the mean confidence of fully accepted drafts; 1 if there is none."""
    sure = [mean_score(c, "confidence") for c in decisions if c.accepted == len(c.tokens)]
    return nearest_rank(sure, quantile) if sure else 1.0


def best_threshold(decisions: Sequence[DraftDecision], k: float) -> float:
    """c_th at which P_conf best separates drafts that are not fully accepted from those that are (Synera, section 4.2).

    It has the largest difference of the mean P_conf of both kinds. Without a draft that was fully accepted it is 1,
    which keeps none on the device; where all were, it is 0, which keeps confident ones there.
    """
    right = [mean_score(c, "confidence") for c in decisions if c.accepted == len(c.tokens)]
    wrong = [mean_score(c, "confidence") for c in decisions if c.accepted != len(c.tokens)]
    if not right:
        return 1.0
    if not wrong:
        return 0.0

    def separation(c_th: float) -> float:
        offloaded = [sum(p_confidence(c, c_th, k) for c in kind) / len(kind) for kind in (wrong, right)]
        return offloaded[0] - offloaded[1]

    return max((i / 1000 for i in range(1000)), key=separation)


def acceptance_rate(decisions: Sequence[DraftDecision]) -> float:
    """alpha, from the mean number of tokens a verification yields: E = (1 - alpha^(gamma+1)) / (1 - alpha).

    gamma is the longest draft, and the bonus token counts (Leviathan et al. 2023, Eq. 1). Solved by bisection.
    """
    if not decisions:
        return 0.0
    gamma = max(len(c.tokens) for c in decisions)
    full = [c for c in decisions if len(c.tokens) == gamma]
    mean = sum((c.accepted or 0) + 1 for c in full) / len(full)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**t for t in range(gamma + 1)) < mean else (low, middle)
    return (low + high) / 2


def profiled_thresholds(
    by_prompt: Sequence[Sequence[DraftDecision]], c_quantile: float | None, k: float, made_from: Mapping[str, str]
) -> Thresholds:
    """The thresholds that follow from the verified drafts of each profiling prompt. Raises ValueError without any."""
    decisions = [each for own in by_prompt for each in own]
    if not decisions:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.num_prompts or max_new_tokens"
        )

    def by_name(score: str) -> tuple[float, ...]:
        return tuple(mean_score(each, score) for each in decisions)

    num_fully_accepted = sum(each.accepted == len(each.tokens) for each in decisions)
    return Thresholds(
        c_th=best_threshold(decisions, k) if c_quantile is None else quantile_threshold(decisions, c_quantile),
        alpha=acceptance_rate(decisions),
        confidence=by_name("confidence"),
        importance=by_name(IMPORTANCE),
        first_chunk_perplexities=tuple(perplexity(own[0].scores["confidence"]) for own in by_prompt if own),
        made_from={**made_from, "fully accepted": f"{num_fully_accepted} of {len(decisions)} drafts"},
        num_fully_accepted=num_fully_accepted,
        importance_readings={name: by_name(name) for name in readings(decisions) if name != IMPORTANCE},
        importance_auc=importance_aucs(decisions),
        importance_auc_of_full_chunks=importance_aucs(full_drafts(decisions)),
    )
