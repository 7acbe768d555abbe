"""Draft batches on engines that compute one session at a time."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from serving.hardware.latency import ForwardLoad
from serving.messages import DraftBatch, DraftBatchOutcome, DraftOutcome, DraftWork

ExecuteDraft: TypeAlias = Callable[[DraftWork], tuple[DraftOutcome, tuple[ForwardLoad, ...]]]


def check_draft_batch(batch: DraftBatch) -> None:
    """Raises ValueError for two works of one session, and for works that one forward cannot do."""
    if len({work.session for work in batch.works}) < len(batch.works):
        raise ValueError("a session has two works in one batch of drafts, but its cache can only grow by one at a time")
    for work in batch.works:
        if work.early_exit is not None or (work.stop_rule.max_tokens > 1 and not work.branches):
            what = "exits early" if work.early_exit is not None else f"drafts {work.stop_rule.max_tokens} tokens"
            raise ValueError(f"session {work.session!r} {what}; in a batch of drafts one forward writes one token")


def execute_one_by_one(batch: DraftBatch, execute: ExecuteDraft) -> tuple[DraftBatchOutcome, tuple[ForwardLoad, ...]]:
    """Executes the works one by one. Their load is that of the one forward which the named chip would run for all."""
    check_draft_batch(batch)
    done = [execute(work) for work in batch.works]
    loads = [load for _, own_loads in done for load in own_loads]
    return DraftBatchOutcome(tuple(outcome for outcome, _ in done)), one_forward(loads)


def one_forward(loads: Sequence[ForwardLoad]) -> tuple[ForwardLoad, ...]:
    """The load of one forward for several sessions, from a forward of each; none if no session has tokens to run."""
    if not loads:
        return ()
    whole = loads[0]
    for load in loads[1:]:
        whole = whole._replace(
            num_tokens=whole.num_tokens + load.num_tokens,
            interactions=whole.interactions + load.interactions,
            cached_tokens=whole.cached_tokens + load.cached_tokens,
            head_tokens=whole.head_tokens + load.head_tokens,
            extra_sessions=whole.extra_sessions + 1,
        )
    return (whole,)
