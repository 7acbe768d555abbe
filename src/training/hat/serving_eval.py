"""Drafts as they are served: tokens per round on held-out prompts; and the tree of Medusa candidates to verify."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serving.deployment.queries import LoadedModels, Query
from serving.learned.medusa import CandidateRanks
from serving.messages import Origin
from serving.outcomes.offline import run_untimed
from serving.outcomes.record import target_only
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft, MedusaDraft
from serving.policy.slots.offload import AlwaysOffload
from serving.policy.slots.verify import Lossless, TreeVerify
from serving.progress import Progress
from training.fitting.held_out import with_note

VERIFIED_ORIGINS: tuple[Origin, ...] = ("accepted", "corrected", "bonus")
"""Origins of tokens that a verification yields; only the first token of an answer has another origin."""
MAX_RANKS = 10
"""Guesses of each Medusa head that may stand in the tree."""
MIN_TOKENS_PER_ROUND = 1.1
"""The target's own token included. Without drafts it is 1, and drafts take time."""


@dataclass(frozen=True)
class DraftEvaluation:
    prompts: int
    rounds: int
    acceptance_length: float
    """Tokens per round, the target's own included."""
    acceptance_rate: float
    """Share of the drafts that were accepted."""
    drafts_per_round: float
    exact_match: float
    """Share of the answers that equal the target's own. Below 1 where batched rows round differently and two tokens
    were equally likely.
    """


def evaluate_drafts(
    draft: Draft, models: LoadedModels, queries: Sequence[Query], seed: int, progress: Progress
) -> DraftEvaluation:
    """Serves `queries` with every draft verified, and without drafts. Raises ValueError if nothing was drafted."""
    drafting = run_untimed(evaluation_policy(draft), models, queries, seed, with_note(progress, "served with drafts"))
    target = run_untimed(target_only(), models, queries, seed, with_note(progress, "served without"))
    records = [drafting[query.request.session] for query in queries]
    decisions = [decision for record in records for decision in record.draft_decisions if decision.tokens]
    num_drafts = sum(len(decision.tokens) for decision in decisions)
    if not decisions:
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.num_prompts")
    verified = sum(record.origins.count(origin) for record in records for origin in VERIFIED_ORIGINS)
    same = [
        record.tokens == target[query.request.session].tokens for query, record in zip(queries, records, strict=True)
    ]
    return DraftEvaluation(
        prompts=len(queries),
        rounds=len(decisions),
        acceptance_length=verified / len(decisions),
        acceptance_rate=sum(decision.accepted or 0 for decision in decisions) / num_drafts,
        drafts_per_round=num_drafts / len(decisions),
        exact_match=sum(same) / len(same),
    )


def evaluation_policy(draft: Draft) -> Policy:
    """Drafts are written beside the target, which verifies all of them; a tree is verified as a tree."""
    verify = TreeVerify() if isinstance(draft, MedusaDraft) else Lossless()
    return replace(target_only(), name="trial", draft=draft, offload=AlwaysOffload(), verify=verify)


def check(evaluation: DraftEvaluation, subject: str) -> None:
    """Raises ValueError, with the figures, for drafts that are hardly better than none."""
    if evaluation.acceptance_length < MIN_TOKENS_PER_ROUND:
        raise ValueError(
            f"{subject} no better than none: {evaluation.acceptance_length:.2f} tokens a round on "
            f"{evaluation.prompts} held-out prompts ({MIN_TOKENS_PER_ROUND} are required, 1 is the value without "
            f"drafts), {evaluation.acceptance_rate:.1%} of {evaluation.drafts_per_round:.1f} drafts a round accepted; "
            "train on more texts (workload.profiling.num_prompts) or longer (recipe.steps, recipe.patience)"
        )


def build_tree(accuracies: Sequence[Sequence[float]], candidates: int) -> tuple[CandidateRanks, ...]:
    """The tree of `candidates` candidates with the most expected accepted ones (Medusa, section 2.3.3).

    `accuracies[k][r]` is the share of positions where rank r of head k is right; heads are taken to be independent.
    Parents come before their children. Raises ValueError if the heads have fewer candidates.
    """
    tree: list[CandidateRanks] = []
    frontier: dict[CandidateRanks, float] = {(rank,): accuracy for rank, accuracy in enumerate(accuracies[0])}
    while len(tree) < candidates:
        if not frontier:
            raise ValueError(f"{candidates} candidates are wanted, and {len(tree)} can be made of these heads' guesses")
        ranks = min(frontier, key=lambda path: (-frontier[path], len(path), path))
        probability = frontier.pop(ranks)
        tree.append(ranks)
        if len(ranks) < len(accuracies):
            following = enumerate(accuracies[len(ranks)])
            frontier |= {(*ranks, rank): probability * accuracy for rank, accuracy in following}
    return tuple(tree)
