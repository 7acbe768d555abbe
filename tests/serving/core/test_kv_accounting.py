"""Cache lengths on a worker's chip: valid, running, rejected, evicted."""

from serving.core.kv_accounting import KVAccounting
from serving.messages import INF, SequenceSlice, Span

WHOLE = Span(0, 8, embedding=True, lm_head=True)
HEAD = Span(8, 8, lm_head=True)


def rows(
    session: str = "a", start: int = 0, n: int = 10, check: int = 0, keep: tuple[int, ...] | None = None
) -> SequenceSlice:
    return SequenceSlice(session, start, n, tuple(range(n)), check, "greedy", kept_tree_nodes=keep)


def run(ledger: KVAccounting, r: SequenceSlice, rejected: int = 0, span: Span = WHOLE) -> None:
    ledger.start_forward(r, span)
    ledger.finish_forward(r, span, rejected)


def test_a_cache_is_as_long_as_the_computed_tokens_without_rejected_ones() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    assert ledger.valid_len(rows(), WHOLE) == 0
    run(ledger, rows())
    assert ledger.valid_len(rows(), WHOLE) == 10
    run(ledger, rows(start=10, n=5, check=4), rejected=3)
    assert ledger.valid_len(rows(), WHOLE) == ledger.used_tokens == 12


def test_during_a_pass_the_cache_is_valid_up_to_its_start() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows())
    ledger.start_forward(rows(start=7, n=5), WHOLE)
    assert ledger.valid_len(rows(), WHOLE) == 7


def test_a_shorter_start_truncates() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows())
    run(ledger, rows(start=4, n=2))
    assert ledger.valid_len(rows(), WHOLE) == 6


def test_accepted_drafts_of_a_tree_are_compacted_after_the_committed_tokens() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows(n=13, check=8))  # a tree keeps its rows until the next question says which survive
    assert ledger.valid_len(rows(keep=(0, 5)), WHOLE) == 5 + 2
    assert ledger.valid_len(rows(), WHOLE) == 13


def test_a_kept_draft_that_is_not_in_the_tree_is_a_missing_cache() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows(n=13, check=8))
    assert ledger.valid_len(rows(start=7, keep=(0, 7)), WHOLE) == 7
    assert ledger.valid_len(rows(start=7, keep=(0, 8)), WHOLE) < 7


def test_a_tree_is_kept_once() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows(n=13, check=8))
    again = rows(start=7, n=9, check=8, keep=(0, 7))
    assert ledger.ends_with_tree(again, WHOLE)
    run(ledger, again)
    assert not ledger.ends_with_tree(again, WHOLE)
    assert ledger.valid_len(again, WHOLE) >= 7


def test_spans_of_one_session_have_caches_of_their_own() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    front = Span(0, 4, embedding=True)
    run(ledger, rows(n=6), span=front)
    assert ledger.valid_len(rows(), front) == 6
    assert ledger.valid_len(rows(), Span(4, 8, lm_head=True)) == 0


def test_a_span_of_the_lm_head_only_needs_no_cache() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows(), span=HEAD)
    assert ledger.valid_len(rows(start=50), HEAD) == INF
    assert ledger.used_tokens == 0


def test_without_caches_every_request_may_start_over() -> None:
    ledger = KVAccounting(INF, keep_caches=False)
    run(ledger, rows())
    assert ledger.valid_len(rows(start=50), WHOLE) == INF
    assert ledger.evict_session("a") == [("a", 0)]  # the chip holds one all the same, and is told to drop it


def test_idle_caches_are_those_of_sessions_without_queued_requests() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    for session in "abc":
        run(ledger, rows(session))
    assert ledger.idle_caches({"b": None}) == [("a", 0), ("c", 0)]


def test_the_least_recently_used_cache_is_evicted_first() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    for session in "aba":
        run(ledger, rows(session))
    assert ledger.idle_caches(()) == [("b", 0), ("a", 0)]


def test_an_evicted_session_leaves_no_state() -> None:
    ledger = KVAccounting(INF, keep_caches=True)
    run(ledger, rows("a"))
    run(ledger, rows("b"))
    assert ledger.evict_session("a") == [("a", 0)]
    assert ledger.evict_session("a") == []
    assert (ledger.used_tokens, ledger.valid_len(rows("a"), WHOLE)) == (10, 0)


def test_blocks_are_allocated_whole_and_freed_by_a_roll_back() -> None:
    ledger = KVAccounting(100, keep_caches=True, block_tokens=16)
    run(ledger, rows(n=17, check=5), rejected=2)
    assert (ledger.cached_lens["a", 0], ledger.used_tokens, ledger.free_tokens) == (15, 16, 84)
    ledger.start_forward(rows(start=15, n=2), WHOLE)
    assert ledger.used_tokens == 32  # its drafts may stand: their blocks are taken before they run


def test_a_requests_need_is_counted_in_new_blocks() -> None:
    ledger = KVAccounting(INF, keep_caches=True, block_tokens=16)
    assert ledger.extra_tokens(rows(), WHOLE, 33) == 48
    run(ledger, rows(n=10))
    assert [ledger.extra_tokens(rows(start=10), WHOLE, n) for n in (6, 7, 23)] == [0, 16, 32]
    assert ledger.extra_tokens(rows(n=20), WHOLE, 10, done_tokens=10) == 16
    run(ledger, rows(start=10, n=40))
    assert ledger.extra_tokens(rows(start=3), WHOLE, 2) == -48
    assert (
        ledger.extra_tokens(rows(), HEAD, 99) == KVAccounting(9, keep_caches=False).extra_tokens(rows(), WHOLE, 99) == 0
    )


def test_available_memory_is_free_blocks_and_those_of_idle_sessions() -> None:
    ledger = KVAccounting(100, keep_caches=True, block_tokens=16)
    for session, n in (("a", 10), ("b", 20), ("c", 1)):
        run(ledger, rows(session, n=n))
    assert (
        ledger.free_tokens,
        ledger.reclaimable_tokens(()),
        ledger.reclaimable_tokens({"b": None}),
        ledger.reclaimable_tokens("ab"),
    ) == (36, 100, 68, 52)
    assert (
        KVAccounting(INF, keep_caches=True).reclaimable_tokens(())
        == KVAccounting(9, keep_caches=False).reclaimable_tokens(())
        == INF
    )
