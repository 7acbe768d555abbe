"""What drafts are worth when they are served: tokens a round on prompts that nothing was learned from.

Which candidates a verification looks at: those that are likeliest with such heads (Medusa, section 2.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

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

VERIFIED_ORIGINS: tuple[Origin, ...] = ("accepted", "corrected", "bonus")
"""Tokens that a verification wrote; another is a prompt's first one."""
MIN_TOKENS_PER_ROUND = 1.1
"""A round, the target's own included: without any draft it is 1, and drafts take time."""


@dataclass(frozen=True)
class DraftEvaluation:
    """Raises nothing: who is refused is for `check` to say."""

    prompts: int
    rounds: int
    acceptance_length: float
    """Tokens a round, the target's own included."""
    acceptance_rate: float
    """Share of the drafts that stood."""
    drafts_per_round: float
    exact_match: float
    """Share of the texts that are the target's own. Not 1 where rows computed together round otherwise and two tokens
    were equally likely.
    """

    def metrics(self) -> dict[str, float]:
        return {f"served/{name}": value for name, value in asdict(self).items()}


def evaluate_drafts(
    draft: Draft, models: LoadedModels, queries: Sequence[Query], seed: int, progress: Progress
) -> DraftEvaluation:
    """Every draft is verified. Raises ValueError where there is no prompt, or nothing was drafted."""

    def noted(note: str) -> Progress:
        return lambda done, total, _: progress(done, total, note)

    played = run_untimed(evaluation_policy(draft), models, queries, seed, noted("served with drafts"))
    alone = run_untimed(target_only(), models, queries, seed, noted("served without"))
    records = [played[query.request.session] for query in queries]
    chunks = [chunk for record in records for chunk in record.draft_decisions if chunk.tokens]
    drafted = sum(len(chunk.tokens) for chunk in chunks)
    if not chunks:
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.num_prompts")
    written = sum(record.origins.count(origin) for record in records for origin in VERIFIED_ORIGINS)
    same = [
        record.tokens == alone[query.request.session].tokens for query, record in zip(queries, records, strict=True)
    ]
    return DraftEvaluation(
        prompts=len(queries),
        rounds=len(chunks),
        acceptance_length=written / len(chunks),
        acceptance_rate=sum(chunk.accepted or 0 for chunk in chunks) / drafted,
        drafts_per_round=drafted / len(chunks),
        exact_match=sum(same) / len(same),
    )


def evaluation_policy(draft: Draft) -> Policy:
    """The target in one place, and all that is drafted verified by it; a tree as a tree."""
    verify = TreeVerify() if isinstance(draft, MedusaDraft) else Lossless()
    return replace(target_only(), name="trial", draft=draft, offload=AlwaysOffload(), verify=verify)


def check(evaluation: DraftEvaluation, subject: str) -> None:
    """Raises ValueError, with the figures, for drafts that are hardly better than none."""
    if evaluation.acceptance_length < MIN_TOKENS_PER_ROUND:
        raise ValueError(
            f"{subject} no better than none: {evaluation.acceptance_length:.2f} tokens a round on {evaluation.prompts} held-out "
            f"prompts ({MIN_TOKENS_PER_ROUND} are wanted, 1 is had without), {evaluation.acceptance_rate:.1%} of "
            f"{evaluation.drafts_per_round:.1f} drafts a round accepted; train on more texts (workload.profiling.num_prompts) or "
            "longer (recipe.steps, recipe.patience)"
        )


def build_tree(accuracies: Sequence[Sequence[float]], candidates: int) -> tuple[CandidateRanks, ...]:
    """So many candidates of which as many as can be are expected to stand, parents before their children.

    `accuracies[k][r]` is how often head k's guess of rank r is right; heads are taken to err independently. Raises
    ValueError where there are fewer candidates than asked for.
    """
    tree: list[CandidateRanks] = []
    waiting: dict[CandidateRanks, float] = {(rank,): chance for rank, chance in enumerate(accuracies[0])}
    while len(tree) < candidates:
        if not waiting:
            raise ValueError(f"{candidates} candidates are wanted, and {len(tree)} can be made of these heads' guesses")
        ranks = min(waiting, key=lambda path: (-waiting[path], len(path), path))
        chance = waiting.pop(ranks)
        tree.append(ranks)
        if len(ranks) < len(accuracies):
            waiting |= {(*ranks, rank): chance * each for rank, each in enumerate(accuracies[len(ranks)])}
    return tuple(tree)
