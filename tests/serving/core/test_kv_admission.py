"""Admission under a budget of blocks, and which cache is evicted."""

import pytest

from serving.core.kv_accounting import CacheKey, KVAccounting, admit
from serving.core.queued_request import QueuedRequest
from serving.messages import Request, SequenceSlice, Span

WHOLE = Span(0, 8, embedding=True, lm_head=True)


def item(session: str, start: int, n: int) -> QueuedRequest:
    rows = SequenceSlice(session, start, n, tuple(range(n)))
    return QueuedRequest(Request(1, rows, (), 0, (), "device-0"), rows, WHOLE, 0.0, n)


def ledger(capacity: float, **lengths: int) -> KVAccounting:
    book = KVAccounting(capacity, keep_caches=True, block_tokens=16)
    for session, n in lengths.items():
        book.start_forward(item(session, 0, n).slice, WHOLE)
        book.finish_forward(item(session, 0, n).slice, WHOLE, 0)
    return book


def admitted(book: KVAccounting, *items: QueuedRequest) -> tuple[list[str], list[str]]:
    gone: list[CacheKey] = []
    picked = admit([(i, i.slice.num_tokens) for i in items], book, {i.slice.session: [i] for i in items}, gone)
    return [i.slice.session for i, _ in picked], [session for session, _ in gone]


def test_tokens_that_fit_into_the_last_block_need_no_memory() -> None:
    assert admitted(ledger(32, a=10, b=10), item("a", 10, 6), item("b", 10, 5)) == (["a", "b"], [])


def test_one_token_too_many_evicts_the_longest_idle_session() -> None:
    book = ledger(64, idle=17, young=3, a=10)
    assert admitted(book, item("a", 10, 7)) == (["a"], ["idle"])
    assert book.used_tokens == 32


def test_queued_sessions_are_not_evicted_for_the_second_request_of_a_batch() -> None:
    assert admitted(ledger(48, a=16, b=16), item("a", 16, 1), item("b", 16, 1)) == (["a"], [])


def test_a_roll_back_of_one_session_makes_room_for_another() -> None:
    assert admitted(ledger(64, a=48), item("a", 3, 2), item("b", 0, 40)) == (["a", "b"], [])


def test_blocks_count_against_the_budget_and_not_tokens() -> None:
    with pytest.raises(RuntimeError, match="a needs 48 cached tokens, the budget is 40"):
        admitted(ledger(40), item("a", 0, 33))
