"""The batches of schedulers, by table: requests as `session: (left, drafts)` or `session: (left, drafts, start)`."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from serving.core.kv_accounting import KVAccounting, MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import ZERO_ESTIMATOR
from serving.messages import INF, Request, SequenceSlice, Span, TensorRef
from serving.policy.slots.scheduler import ContinuousBatch, Fifo, Scheduler, StaticBatch, UpwardRank, VerificationAware

FREE = MemoryBudget(KVAccounting(INF, keep_caches=True), ())


def item(
    session: str, left: int, check: int = 0, start: int = 0, arrived: float = 0.0, blob: TensorRef | None = None
) -> QueuedRequest:
    seq = SequenceSlice(session, start, left, tuple(range(left)), check, "greedy", hidden_states=blob)
    return QueuedRequest(
        Request(0, seq, (), 0, (), "device"), seq, Span(0, 8, embedding=True, lm_head=True), arrived, left
    )


def items(rows: Mapping[str, tuple[int, ...]]) -> list[QueuedRequest]:
    return [item(session, *sizes, arrived=i * 0.01) for i, (session, sizes) in enumerate(rows.items())]


def picked(scheduler: Scheduler, waiting: list[QueuedRequest], now: float = 1.0) -> dict[str, int] | float:
    found = scheduler.pick(waiting, now, FREE, ZERO_ESTIMATOR)
    return {i.slice.session: n for i, n in found} if isinstance(found, list) else found


FOUR = {"a": (5, 4), "b": (100, 0), "c": (5, 4), "d": (1, 0)}
PREFILLS = {"a": (100, 0), "b": (5, 4, 60), "c": (40, 4)}
VERIFICATIONS = {"a": (5, 4, 60), "b": (34, 4, 60), "c": (80, 4, 60), "d": (1, 0, 60)}

TABLE: dict[str, tuple[Scheduler, dict[str, tuple[int, ...]], dict[str, int]]] = {
    "static batch: the oldest, whole": (StaticBatch(2, 0.0), FOUR, {"a": 5, "b": 100}),
    "static batch: overdue and not full": (StaticBatch(9, 0.5), FOUR, {"a": 5, "b": 100, "c": 5, "d": 1}),
    "continuous: all requests, whole": (ContinuousBatch(), FOUR, {"a": 5, "b": 100, "c": 5, "d": 1}),
    "continuous: the oldest up to its size": (ContinuousBatch(max_num_seqs=2), FOUR, {"a": 5, "b": 100}),
    "chunked: decodes first, the prompt gets the rest": (
        ContinuousBatch(chunk_tokens=32),
        FOUR,
        {"a": 5, "c": 5, "d": 1, "b": 21},
    ),
    "chunked: decodes spend it all": (ContinuousBatch(chunk_tokens=11), FOUR, {"a": 5, "c": 5, "d": 1}),
    "chunked: a verification is not cut": (ContinuousBatch(chunk_tokens=7), {"a": (5, 4), "c": (5, 4)}, {"a": 5}),
    "chunked: one that cannot be cut leads its own iteration": (
        ContinuousBatch(chunk_tokens=3),
        {"a": (5, 4), "c": (5, 4)},
        {"a": 5},
    ),
    "chunked: what fits beside one that does not": (
        ContinuousBatch(chunk_tokens=7),
        {"a": (5, 4), "b": (5, 4), "c": (1, 0)},
        {"a": 5, "c": 1},
    ),
    "aware: prefills apart and first, whole": (VerificationAware(), PREFILLS, {"a": 100, "c": 40}),
    "aware: a short prompt is a prefill, too": (VerificationAware(), {"a": (5, 4), "b": (5, 4, 60)}, {"a": 5}),
    "aware: verifications in chunks, drafts and the token before them together": (
        VerificationAware(),
        VERIFICATIONS,
        {"a": 5, "b": 29, "c": 32, "d": 1},
    ),
    "aware: up to its size": (VerificationAware(max_num_seqs=1), PREFILLS, {"a": 100}),
}


def came(session: str, since: float, arrived: float, budget: int = 1, left: int = 1) -> QueuedRequest:
    made = item(session, left, arrived=arrived)
    made.session_arrived_s, made.request = since, replace(made.request, budget=budget)
    return made


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (Fifo(), ["b"]),
        (Fifo(2), ["b", "a"]),
        (Fifo(9), ["b", "a", "d", "c"]),
        (UpwardRank(), ["a"]),
        (UpwardRank(3), ["a", "d", "b"]),
    ],
    ids=repr,
)
def test_tasks_are_ordered_by_arrival_or_by_remaining_work(scheduler: Scheduler, expected: list) -> None:
    """Not by when this pass arrived, in which the oldest may be the last: `c` is the session that came last."""
    waiting = [
        came("c", since=0.9, arrived=1.0, budget=2, left=40), came("d", since=0.4, arrived=1.1, budget=5),
        came("a", since=0.2, arrived=1.2, budget=5), came("b", since=0.1, arrived=1.3, budget=2),
    ]  # fmt: skip
    found = scheduler.pick(waiting, 2.0, FREE, ZERO_ESTIMATOR)
    assert [(i.slice.session, n) for i, n in found] == [(each, 40 if each == "c" else 1) for each in expected]  # type: ignore[union-attr]


@pytest.mark.parametrize("case", TABLE)
def test_each_scheduler_picks_its_batch(case: str) -> None:
    scheduler, waiting, expected = TABLE[case]
    assert picked(scheduler, items(waiting)) == expected


def test_a_static_batch_waits_until_it_is_full_or_due() -> None:
    scheduler, waiting = StaticBatch(3, 0.05), items({"a": (5, 4), "b": (5, 4)})
    assert picked(scheduler, waiting, now=0.02) == 0.05
    assert picked(scheduler, waiting, now=0.05) == {"a": 5, "b": 5}
    assert picked(scheduler, [*waiting, item("c", 5, 4)], now=0.02) == {"a": 5, "b": 5, "c": 5}


def test_a_part_of_a_prompt_is_a_prefill_and_a_late_verification_is_not() -> None:
    part = item("a", 40, start=60)
    part.slice = replace(part.slice, rule="")
    verification = item("b", 100, check=4, start=60)
    assert picked(VerificationAware(), [verification, part]) == {"a": 40}
    assert picked(VerificationAware(), [verification, item("c", 5, 4, 60)]) == {"b": 32, "c": 5}


def test_the_last_chunk_of_a_verification_holds_the_drafts() -> None:
    """Chunk by chunk as a worker does it: every row once, the verdict's rows last and together."""
    scheduler, one, sizes = VerificationAware(chunk_tokens=32), item("a", 104, check=4, start=60), []
    while one.remaining_tokens:
        ((_, n),) = scheduler.pick([one], 0.0, FREE, ZERO_ESTIMATOR)  # type: ignore[misc]
        sizes.append(n)
        one.done_tokens += n
        one.remaining_tokens -= n
    assert sizes == [32, 32, 32, 8]
    assert sum(sizes) == 104


@pytest.mark.parametrize("num_drafts", [0, 4])
@pytest.mark.parametrize("chunk_tokens", [1, 5, 32])
def test_chunks_never_split_the_drafts(num_drafts: int, chunk_tokens: int) -> None:
    for num_tokens in range(num_drafts + 1, 45):
        one = item("a", num_tokens, num_drafts)
        while one.remaining_tokens:
            n = one.chunk_size(chunk_tokens)
            assert 1 <= n <= one.remaining_tokens
            rest = one.remaining_tokens - n
            assert rest == 0 or rest > num_drafts, "the token before the drafts was sent without them"
            one.done_tokens, one.remaining_tokens = one.done_tokens + n, rest


def test_hidden_states_are_narrowed_like_tokens() -> None:
    whole = item("a", 100, blob=TensorRef("h", 800))
    assert whole.chunk_size(32) == 32
    chunks = (whole.slice.narrow(0, 32), whole.slice.narrow(32, 100))
    assert [(chunk.start, chunk.num_tokens, chunk.hidden_offset) for chunk in chunks] == [
        (0, 32, 0), (32, 68, 32)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StaticBatch(0, 0.1), "policy.scheduler.max_num_seqs is 0; it must be at least 1"),
        (lambda: StaticBatch(1, -0.1), "policy.scheduler.window_s is -0.1; give seconds, 0 or more"),
        (lambda: StaticBatch(1, INF), "policy.scheduler.window_s is inf; give seconds, 0 or more"),
        (lambda: Fifo(0), "policy.scheduler.max_num_seqs is 0"),
        (lambda: UpwardRank(0), "policy.scheduler.max_num_seqs is 0"),
        (lambda: ContinuousBatch(max_num_seqs=0), "policy.scheduler.max_num_seqs is 0"),
        (lambda: ContinuousBatch(chunk_tokens=0), "policy.scheduler.chunk_tokens is 0"),
        (lambda: VerificationAware(max_num_seqs=0), "policy.scheduler.max_num_seqs is 0"),
        (lambda: VerificationAware(chunk_tokens=0), "policy.scheduler.chunk_tokens is 0"),
    ],
)
def test_scheduler_sizes_below_1_are_refused(build: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(("capacity", "first"), [(INF, "a"), (64, "a"), (32, "b")])
def test_prefills_that_need_a_waiting_verifications_memory_run_after_it(capacity: float, first: str) -> None:
    memory = MemoryBudget(KVAccounting(capacity, keep_caches=True), ("a", "b"))
    waiting = items({"a": (40, 4), "b": (5, 4, 20)})
    batch = VerificationAware().pick(waiting, 1.0, memory, ZERO_ESTIMATOR)
    assert isinstance(batch, list)
    assert [queued.slice.session for queued, _ in batch] == [first]
