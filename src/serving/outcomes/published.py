"""Shifts a fitted model of acceptance until a published drafter's drafts give its published tokens a round.

A table says how many tokens a round gives over all its tasks, and how much faster each task is. Rounds of one drafter
take about as long on every task, so tokens a round are in proportion to the speed-up. Which acceptance gives as many is
found by bisection over drawn rounds of a long text, with the same random bits for every guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from serving.messages import DraftStopRule, TreeRule
from serving.outcomes import fitted, shifted
from serving.outcomes.acceptance_draws import AcceptanceDraws
from serving.outcomes.fitted import AnswerLengths, FittedAcceptance, PromptLengths
from serving.outcomes.outcomes import PlannedOutcomes
from serving.outcomes.sampled_tree import SampledTree

ROUNDS = 2000
"""Drawn for each guess; the mean of tokens a round is then known to 2 %."""
_HALVINGS = 14
_EDGE = 1e-3
"""Distance kept from an acceptance that no weight of the recorded rows leads to."""


@dataclass(frozen=True, kw_only=True)
class PublishedAcceptance:
    """A row of a published table: one drafter, several tasks, and the drafts that it was measured with.

    Raises ValueError for numbers out of range, and for drafts that cannot give so many tokens.
    """

    source: str
    """Title, table, hardware and pair."""
    nodes: int
    """Tokens of a draft: a tree of `depth` levels with up to `branching` children a node; one child makes a chain."""
    depth: int
    branching: int
    tokens_per_round: float
    """Over all tasks, the target's own token included."""
    speedup: float
    """Over all tasks."""
    speedups: Mapping[str, float]
    """By task."""

    def __post_init__(self) -> None:
        for name in ("nodes", "depth", "branching", "speedup"):
            if not getattr(self, name) > 0:
                raise ValueError(f"runtime.outcomes.published.{name} is {getattr(self, name)}; it must be above 0")
        for task in self.speedups:
            if not 1 < self.tokens_on(task) < 1 + self.depth:
                raise ValueError(
                    f"runtime.outcomes.published: {task} has {self.tokens_on(task):.2f} tokens a round; drafts of "
                    f"{self.depth} levels give more than 1 and fewer than {1 + self.depth}"
                )

    def tokens_on(self, task: str) -> float:
        """Tokens a round on one task. Raises ValueError for a task that the table does not have."""
        if task not in self.speedups:
            raise ValueError(f"runtime.outcomes.task is {task!r}; the table has {', '.join(self.speedups)}")
        return self.tokens_per_round * self.speedups[task] / self.speedup

    @cached_property
    def stop_rule(self) -> DraftStopRule:
        """How its drafts grow."""
        return DraftStopRule(self.nodes, tree=TreeRule(self.depth, self.branching))


def load(
    path: Path,
    published: PublishedAcceptance,
    task: str,
    prompt_lengths: PromptLengths | None = None,
    full_length_answers: bool = False,
    answer_lengths: AnswerLengths | None = None,
) -> FittedAcceptance:
    """As `serving.outcomes.fitted.load`, shifted to what `published` says of `task`.

    Raises ValueError for tokens a round that no weight of the recorded rows leads to, and for a trace with trees that
    heads of the target proposed: the table is not theirs.
    """
    model = fitted.load(path, prompt_lengths, full_length_answers, answer_lengths)
    if model.medusa_tree:
        raise ValueError(
            "runtime.outcomes.published shifts drafts of a draft model, and this trace has trees that heads of the "
            "target proposed; choose runtime/outcomes=shifted with medusa_accept_length"
        )
    made = shifted.shift(model, _found_acceptance(path, published.stop_rule, published.tokens_on(task)))
    return replace(made, shifted_as=f"{published.tokens_on(task):.2f} tokens a round on {task}, {published.source}")


def planned_load(published: PublishedAcceptance, task: str, **_: object) -> PlannedOutcomes:
    """What a plan knows of the model, before it is fitted. Raises ValueError for an unknown task."""
    published.tokens_on(task)
    return PlannedOutcomes("runtime/outcomes of a published drafter", draws_trees=True, is_text=False)


@cache
def _found_acceptance(path: Path, stop_rule: DraftStopRule, tokens_per_round: float) -> float:
    return find_acceptance(fitted.load(path), stop_rule, tokens_per_round)


def find_acceptance(
    model: FittedAcceptance, stop_rule: DraftStopRule, tokens_per_round: float, rounds: int = ROUNDS
) -> float:
    """The acceptance at which the drafts give so many tokens a round, by that many drawn rounds for each guess.

    Raises ValueError if none does.
    """
    least, most = shifted.reachable_acceptance(model)
    edge = min(_EDGE, (most - least) / 4)
    low, high = least + edge, most - edge
    bounds = [mean_tokens_per_round(shifted.shift(model, one), stop_rule, rounds) for one in (low, high)]
    if not bounds[0] <= tokens_per_round <= bounds[1]:
        raise ValueError(
            f"runtime.outcomes.published wants {tokens_per_round:.2f} tokens a round, and the recorded drafts allow "
            f"{bounds[0]:.2f} to {bounds[1]:.2f} in its shape; choose another task, or another pair"
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fewer = mean_tokens_per_round(shifted.shift(model, middle), stop_rule, rounds) < tokens_per_round
        low, high = (middle, high) if fewer else (low, middle)
    return (low + high) / 2


def mean_tokens_per_round(model: FittedAcceptance, stop_rule: DraftStopRule, rounds: int) -> float:
    """Tokens that a round of such drafts gives within a long text, the target's own included."""
    draws, thresholds = AcceptanceDraws(0, "published", 0), model.probabilities.thresholds
    position = 0
    for _ in range(rounds):
        tree = SampledTree(draws, position, stop_rule, model.pools, thresholds, sampled=False)
        position += 1 + tree.num_accepted()
    return position / rounds
