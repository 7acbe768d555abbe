"""What drafts are worth when they are served: tokens a round on prompts that nothing was learned from.

Which candidates a verification looks at: those that are likeliest with such heads (Medusa, section 2.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from serving.deployment.queries import Models, Query
from serving.learned.medusa import Ranks
from serving.messages import Origin
from serving.outcomes.offline import play
from serving.outcomes.record import target_alone
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft, Heads
from serving.policy.slots.offload import Always
from serving.policy.slots.verify import Lossless, Tree
from serving.progress import Progress

ROUND: tuple[Origin, ...] = ("accepted", "corrected", "bonus")
"""Tokens that a verification wrote; another is a prompt's first one."""
LEAST_TOKENS = 1.1
"""A round, the target's own included: without any draft it is 1, and drafts take time."""


@dataclass(frozen=True)
class Trial:
    """Raises nothing: who is refused is for `check` to say."""

    prompts: int
    rounds: int
    acceptance_length: float
    """Tokens a round, the target's own included."""
    acceptance: float
    """Share of the drafts that stood."""
    drafts_a_round: float
    same: float
    """Share of the texts that are the target's own. Not 1 where rows computed together round otherwise and two tokens
    were equally likely.
    """

    def metrics(self) -> dict[str, float]:
        return {f"served/{name}": value for name, value in asdict(self).items()}


def serve(draft: Draft, models: Models, queries: Sequence[Query], seed: int, progress: Progress) -> Trial:
    """Every draft is verified. Raises ValueError where there is no prompt, or nothing was drafted."""

    def noted(note: str) -> Progress:
        return lambda done, total, _: progress(done, total, note)

    played = play(policy(draft), models, queries, seed, noted("served with drafts"))
    alone = play(target_alone(), models, queries, seed, noted("served without"))
    records = [played[query.call.session] for query in queries]
    chunks = [chunk for record in records for chunk in record.chunks if chunk.tokens]
    drafted = sum(len(chunk.tokens) for chunk in chunks)
    if not chunks:
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.prompts")
    written = sum(record.origins.count(origin) for record in records for origin in ROUND)
    same = [record.tokens == alone[query.call.session].tokens for query, record in zip(queries, records, strict=True)]
    return Trial(
        prompts=len(queries),
        rounds=len(chunks),
        acceptance_length=written / len(chunks),
        acceptance=sum(chunk.accepted or 0 for chunk in chunks) / drafted,
        drafts_a_round=drafted / len(chunks),
        same=sum(same) / len(same),
    )


def policy(draft: Draft) -> Policy:
    """The target in one place, and all that is drafted verified by it; a tree as a tree."""
    verify = Tree() if isinstance(draft, Heads) else Lossless()
    return replace(target_alone(), name="trial", draft=draft, offload=Always(), verify=verify)


def check(trial: Trial, what: str) -> None:
    """Raises ValueError, with the figures, for drafts that are hardly better than none."""
    if trial.acceptance_length < LEAST_TOKENS:
        raise ValueError(
            f"{what} no better than none: {trial.acceptance_length:.2f} tokens a round on {trial.prompts} held-out "
            f"prompts ({LEAST_TOKENS} are wanted, 1 is had without), {trial.acceptance:.1%} of "
            f"{trial.drafts_a_round:.1f} drafts a round accepted; train on more texts (workload.profiling.prompts) or "
            "longer (recipe.steps, recipe.patience)"
        )


def grow(accuracies: Sequence[Sequence[float]], candidates: int) -> tuple[Ranks, ...]:
    """So many candidates of which as many as can be are expected to stand, parents before their children.

    `accuracies[k][r]` is how often head k's guess of rank r is right; heads are taken to err independently. Raises
    ValueError where there are fewer candidates than asked for.
    """
    tree: list[Ranks] = []
    waiting: dict[Ranks, float] = {(rank,): chance for rank, chance in enumerate(accuracies[0])}
    while len(tree) < candidates:
        if not waiting:
            raise ValueError(f"{candidates} candidates are wanted, and {len(tree)} can be made of these heads' guesses")
        ranks = min(waiting, key=lambda path: (-waiting[path], len(path), path))
        chance = waiting.pop(ranks)
        tree.append(ranks)
        if len(ranks) < len(accuracies):
            waiting |= {(*ranks, rank): chance * each for rank, each in enumerate(accuracies[len(ranks)])}
    return tuple(tree)
