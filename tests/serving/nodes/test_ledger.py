"""Cache lengths on a worker's chip: valid, running, rejected, evicted."""

from serving.core.kv_accounting import Ledger
from serving.messages import INF, Rows, Span

WHOLE = Span(0, 8, embed=True, head=True)
HEAD = Span(8, 8, head=True)


def rows(session: str = "a", start: int = 0, n: int = 10, check: int = 0, keep: tuple[int, ...] | None = None) -> Rows:
    return Rows(session, start, n, tuple(range(n)), check, "greedy", keep=keep)


def run(ledger: Ledger, r: Rows, rejected: int = 0, span: Span = WHOLE) -> None:
    ledger.started(r, span)
    ledger.finished(r, span, rejected)


def test_a_cache_is_as_long_as_what_ran_without_what_was_rejected() -> None:
    ledger = Ledger(INF, keep=True)
    assert ledger.valid(rows(), WHOLE) == 0
    run(ledger, rows())
    assert ledger.valid(rows(), WHOLE) == 10
    run(ledger, rows(start=10, n=5, check=4), rejected=3)
    assert ledger.valid(rows(), WHOLE) == ledger.used == 12


def test_while_rows_run_only_what_lies_before_them_is_sure() -> None:
    ledger = Ledger(INF, keep=True)
    run(ledger, rows())
    ledger.started(rows(start=7, n=5), WHOLE)
    assert ledger.valid(rows(), WHOLE) == 7


def test_a_shorter_start_truncates() -> None:
    ledger = Ledger(INF, keep=True)
    run(ledger, rows())
    run(ledger, rows(start=4, n=2))
    assert ledger.valid(rows(), WHOLE) == 6


def test_a_trees_survivors_are_compacted_behind_its_plain_rows() -> None:
    ledger = Ledger(INF, keep=True)
    run(ledger, rows(n=13, check=8))  # a tree keeps its rows until the next question says which survive
    assert ledger.valid(rows(keep=(0, 5)), WHOLE) == 5 + 2
    assert ledger.valid(rows(), WHOLE) == 13


def test_spans_of_one_session_have_caches_of_their_own() -> None:
    ledger = Ledger(INF, keep=True)
    front = Span(0, 4, embed=True)
    run(ledger, rows(n=6), span=front)
    assert ledger.valid(rows(), front) == 6
    assert ledger.valid(rows(), Span(4, 8, head=True)) == 0


def test_a_head_alone_needs_no_cache() -> None:
    ledger = Ledger(INF, keep=True)
    run(ledger, rows(), span=HEAD)
    assert ledger.valid(rows(start=50), HEAD) == INF
    assert ledger.used == 0


def test_without_reuse_every_question_may_start_over() -> None:
    ledger = Ledger(INF, keep=False)
    run(ledger, rows())
    assert ledger.valid(rows(start=50), WHOLE) == INF
    assert ledger.forget("a") == [("a", 0)]  # the chip holds one all the same, and is told to drop it


def test_idle_caches_are_those_of_sessions_that_wait_for_nothing() -> None:
    ledger = Ledger(INF, keep=True)
    for session in "abc":
        run(ledger, rows(session))
    assert ledger.idle({"b": None}) == [("a", 0), ("c", 0)]


def test_the_longest_unused_cache_goes_first() -> None:
    ledger = Ledger(INF, keep=True)
    for session in "aba":
        run(ledger, rows(session))
    assert ledger.idle(()) == [("b", 0), ("a", 0)]


def test_a_session_that_is_struck_out_leaves_nothing() -> None:
    ledger = Ledger(INF, keep=True)
    run(ledger, rows("a"))
    run(ledger, rows("b"))
    assert ledger.forget("a") == [("a", 0)]
    assert ledger.forget("a") == []
    assert (ledger.used, ledger.valid(rows("a"), WHOLE)) == (10, 0)


def test_blocks_are_taken_whole_and_given_back_by_a_roll_back() -> None:
    ledger = Ledger(100, keep=True, block_tokens=16)
    run(ledger, rows(n=17, check=5), rejected=2)
    assert (ledger.lengths["a", 0], ledger.used, ledger.free) == (15, 16, 84)
    ledger.started(rows(start=15, n=2), WHOLE)
    assert ledger.used == 32  # its drafts may stand: their blocks are taken before they run


def test_what_a_request_needs_is_counted_in_new_blocks() -> None:
    ledger = Ledger(INF, keep=True, block_tokens=16)
    assert ledger.need(rows(), WHOLE, 33) == 48
    run(ledger, rows(n=10))
    assert [ledger.need(rows(start=10), WHOLE, n) for n in (6, 7, 23)] == [0, 16, 32]
    assert ledger.need(rows(n=20), WHOLE, 10, done=10) == 16
    run(ledger, rows(start=10, n=40))
    assert ledger.need(rows(start=3), WHOLE, 2) == -48
    assert ledger.need(rows(), HEAD, 99) == Ledger(9, keep=False).need(rows(), WHOLE, 99) == 0


def test_room_is_what_is_free_and_what_idle_sessions_would_leave() -> None:
    ledger = Ledger(100, keep=True, block_tokens=16)
    for session, n in (("a", 10), ("b", 20), ("c", 1)):
        run(ledger, rows(session, n=n))
    assert (ledger.free, ledger.room(()), ledger.room({"b": None}), ledger.room("ab")) == (36, 100, 68, 52)
    assert Ledger(INF, keep=True).room(()) == Ledger(9, keep=False).room(()) == INF
