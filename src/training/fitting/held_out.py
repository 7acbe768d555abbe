"""Training and held-out parts of data, and helpers for the evaluation of a trained artifact on held-out prompts."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from serving.core.decoding import Decoding
from serving.progress import Progress
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query

T = TypeVar("T")
SplitShares = tuple[float, float, float]
"""Shares of training, validation and test."""
SPLIT_ATTEMPTS = 20


class Split(NamedTuple, Generic[T]):
    """Three parts that have nothing in common."""

    train: T
    validation: T
    test: T


def random_split(items: Sequence[T], shares: SplitShares, seed: int) -> Split[list[T]]:
    """Random train/validation/test split.

    Test has at least one item, and validation where there are two; training may be empty.
    """
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(items)).tolist()
    num_test, num_validation = (max(1, round(share * len(order))) for share in (shares[2], shares[1]))
    ends = max(0, len(order) - num_test - num_validation), max(0, len(order) - num_test)
    parts = order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :]
    return Split(*([items[i] for i in part] for part in parts))


def random_splits(items: Sequence[T], shares: SplitShares, seed: int) -> Iterator[Split[list[T]]]:
    """`SPLIT_ATTEMPTS` random splits, the first of them `random_split`'s: for parts that must satisfy a condition."""
    for attempt in range(SPLIT_ATTEMPTS):
        yield random_split(items, shares, seed + attempt * 1_000_003)


def check_prompt_factor(prompt_factor: int) -> None:
    """Raises ValueError for a factor below 1."""
    if prompt_factor < 1:
        raise ValueError(
            f"prompt_factor is {prompt_factor}; a trace has at least as many prompts as workload.profiling"
        )


def training_workload(workload: Workload, prompt_factor: int) -> Workload:
    """The workload that a training trace is recorded on.

    For the embedded pair's tasks: `prompt_factor` times as many prompts, all from the training split, so that the
    prompts of `workload` are left to be served. Any other workload is returned as it is. Raises ValueError for a
    factor below 1.
    """
    check_prompt_factor(prompt_factor)
    if not isinstance(workload.dataset, TinyTasks):
        return workload
    return replace(
        workload, dataset=replace(workload.dataset, split="train"), num_prompts=prompt_factor * workload.num_prompts
    )


def held_out_queries(
    used_prompt_ids: Collection[str], models: "LoadedModels", workload: Workload, decoding: Decoding, seed: int
) -> "list[Query]":
    """The workload's queries whose prompts were not learned from. Raises ValueError if there is none."""
    from serving.deployment.model_loading import make_queries

    queries = make_queries(workload, decoding, seed, 1, models.tokenizer)
    found = [query for query in queries if query.prompt.id not in used_prompt_ids]
    if not found:
        raise ValueError("every prompt of workload.profiling was learned from; raise workload.profiling.num_prompts")
    return found


def with_note(progress: Progress, note: str) -> Progress:
    """Progress that always shows `note`."""
    return lambda done, total, _: progress(done, total, note)


def served_metrics(evaluation: Any) -> dict[str, float]:
    """The fields of an evaluation, a dataclass of numbers, as the metrics `served/FIELD`."""
    return {f"served/{name}": value for name, value in asdict(evaluation).items()}
