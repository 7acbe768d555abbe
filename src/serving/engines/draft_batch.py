"""Draft batches on engines that compute one session at a time."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TypeAlias

from serving.hardware.latency import ForwardLoad
from serving.messages import DraftBatch, DraftBatchOutcome, DraftOutcome, DraftWork

ExecuteDraft: TypeAlias = Callable[[DraftWork], tuple[DraftOutcome, tuple[ForwardLoad, ...]]]


def check_draft_batch(batch: DraftBatch) -> None:
    """Raises ValueError for two works of one session, and for works that one forward cannot do."""
    if len({work.session for work in batch.works}) < len(batch.works):
        raise ValueError("a session has two works in one batch of drafts, but its cache can only grow by one at a time")
    for work in batch.works:
        one_forward_each = work.stop_rule.max_tokens <= 1 or work.branches or work.stop_rule.tree
        if work.early_exit is not None or not one_forward_each:
            what = "exits early" if work.early_exit is not None else f"drafts {work.stop_rule.max_tokens} tokens"
            raise ValueError(f"session {work.session!r} {what}; in a batch of drafts one forward writes one token")


def execute_one_by_one(batch: DraftBatch, execute: ExecuteDraft) -> tuple[DraftBatchOutcome, tuple[ForwardLoad, ...]]:
    """Executes the works one by one. Their loads are those of the forwards which the named chip would run for all: one,
    and one more for each further level of trees.
    """
    check_draft_batch(batch)
    done = [execute(work) for work in batch.works]
    forwards = zip_longest(*(own_loads for _, own_loads in done))
    loads = tuple(one_forward([load for load in own if load]) for own in forwards)
    return DraftBatchOutcome(tuple(outcome for outcome, _ in done)), loads


def one_forward(loads: Sequence[ForwardLoad]) -> ForwardLoad:
    """The load of one forward for several sessions, from a forward of each."""
    whole = loads[0]
    for load in loads[1:]:
        whole = whole._replace(
            num_tokens=whole.num_tokens + load.num_tokens,
            interactions=whole.interactions + load.interactions,
            cached_tokens=whole.cached_tokens + load.cached_tokens,
            head_tokens=whole.head_tokens + load.head_tokens,
            extra_sessions=whole.extra_sessions + 1,
        )
    return whole
