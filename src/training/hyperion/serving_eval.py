"""The trained dispatcher on held-out arrivals: its latency beside that of other dispatch rules."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Mean normalised latency of the same tasks under each dispatch rule."""

    tasks: int
    learned: float
    random: float
    round_robin: float
    hypsched: float
    earliest_finish: float


def evaluate_dispatcher(
    dispatcher: DispatchNetwork, episodes: Sequence[Episode], progress: Progress
) -> DispatchEvaluation:
    """Runs every episode under every dispatch rule."""
    found: dict[str, float] = {}
    rules: dict[str, Dispatch] = {
        "learned": LearnedDispatch(dispatcher),
        "random": RandomDispatch(),
        "round_robin": RoundRobin(),
        "hypsched": HypSched(),
        "earliest_finish": EarliestFinish(),
    }
    for i, (name, dispatch) in enumerate(rules.items(), 1):
        found[name] = mean_normalised_latency(dispatch, episodes)
        progress(i, len(rules), f"{name}: {found[name]:.3f} unloaded latencies a task")
    return DispatchEvaluation(sum(len(each.queries) for each in episodes), **found)


def mean_normalised_latency(dispatch: Dispatch, episodes: Sequence[Episode]) -> float:
    """Mean over all tasks of end-to-end latency over unloaded latency."""
    found = [each for episode in episodes for each in episode.normalised_latencies(dispatch)]
    return sum(found) / len(found)


def check(evaluation: DispatchEvaluation) -> None:
    """Raises ValueError, with the figures, for a dispatcher that is no better than random nodes."""
    if evaluation.learned >= evaluation.random:
        raise ValueError(
            "the dispatcher is no better than random nodes: a task takes "
            f"{evaluation.learned:.3f} times its unloaded latency with it, {evaluation.random:.3f} with random nodes, "
            f"{evaluation.hypsched:.3f} with HypSched, over {evaluation.tasks} held-out tasks; train it longer "
            "(policy.artifacts.dispatcher.recipe.steps), or on more episodes a step"
        )
