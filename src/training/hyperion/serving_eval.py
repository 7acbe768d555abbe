"""What a dispatcher is worth when it is served: latency on arrivals that nothing was learned from, beside others'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from serving.learned.dispatch_network import DispatchNetwork
from serving.policy.slots.dispatch import (
    Dispatch,
    EarliestFinish,
    HypSched,
    LearnedDispatch,
    RandomDispatch,
    RoundRobin,
)
from serving.progress import Progress
from training.hyperion.environment import Episode


@dataclass(frozen=True)
class DispatchEvaluation:
    """Mean latencies of the same tasks, each end to end and over the task's lone latency."""

    tasks: int
    learned: float
    random: float
    round_robin: float
    hypsched: float
    earliest_finish: float

    def metrics(self) -> dict[str, float]:
        return {f"served/{name}": value for name, value in asdict(self).items()}


def evaluate_dispatcher(
    dispatcher: DispatchNetwork, episodes: Sequence[Episode], progress: Progress
) -> DispatchEvaluation:
    """Every episode under every dispatch."""
    found: dict[str, float] = {}
    others: dict[str, Dispatch] = {
        "learned": LearnedDispatch(dispatcher), "random": RandomDispatch(), "round_robin": RoundRobin(), "hypsched": HypSched(),
        "earliest_finish": EarliestFinish(),
    }  # fmt: skip
    for i, (name, dispatch) in enumerate(others.items(), 1):
        found[name] = mean_normalised_latency(dispatch, episodes)
        progress(i, len(others), f"{name}: {found[name]:.3f} lone latencies a task")
    return DispatchEvaluation(sum(len(each.queries) for each in episodes), **found)


def mean_normalised_latency(dispatch: Dispatch, episodes: Sequence[Episode]) -> float:
    """The mean over all tasks of their latencies, each over its lone latency."""
    found = [each for episode in episodes for each in episode.normalised_latencies(dispatch)]
    return sum(found) / len(found)


def check(evaluation: DispatchEvaluation) -> None:
    """Raises ValueError, with the figures, for a dispatcher that is no better than luck."""
    if evaluation.learned >= evaluation.random:
        raise ValueError(
            f"the dispatcher is no better than luck: a task takes {evaluation.learned:.3f} times its lone latency with it, "
            f"{evaluation.random:.3f} with random nodes, {evaluation.hypsched:.3f} with HypSched, over {evaluation.tasks} held-out "
            "tasks; train it longer (policy.artifacts.dispatcher.recipe.steps), or on more episodes a step"
        )
