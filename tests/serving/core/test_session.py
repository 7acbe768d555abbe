"""The token bookkeeping by table: verdicts, and what they leave of drafts, caches and lookahead."""

from typing import Any

import pytest

from serving.core.keyed_random import key, uniform
from serving.core.session import Branch, Session
from serving.messages import DraftOutcome, DraftTree, GenerationRequest, LookaheadOutcome, TensorRef, Verdict

PROMPT = (1, 2, 3)
DRAFT = (10, 11, 12, 13)
END = 99


def session(limit: int = 20, ends: tuple[int, ...] = (END,)) -> Session:
    return Session(GenerationRequest("s", PROMPT, limit, ends), seed=0)


def drafted(s: Session, tokens: tuple[int, ...] = DRAFT, stopped: bool = False) -> Session:
    tops = tuple((t, t + 100, t + 200) for t in tokens)
    odds = tuple(TensorRef(f"odds {t}", 8) for t in tokens)
    s.add_draft(
        DraftOutcome(
            tokens, {"confidence": tuple(0.5 for _ in tokens)}, tops, stopped, len(s.tokens) + len(tokens) - 1, odds
        )
    )
    s.draft_cached_len = len(s.tokens) + len(tokens) - 1
    return s


def asked(tokens: tuple[int, ...] = DRAFT, limit: int = 20, send: bool = True) -> Session:
    s = drafted(session(limit), tokens)
    s.start_verification(send, "greedy")
    return s


# What is sent.


def test_a_request_carries_uncached_tokens_and_then_the_drafts() -> None:
    s = drafted(session())
    s.target_cached_len = 2
    rows = s.start_verification(True, "greedy")
    assert (rows.start, rows.num_tokens, rows.tokens, rows.num_drafts, rows.rule) == (2, 5, (3, *DRAFT), 4, "greedy")
    assert [blob.id for blob in rows.draft_probs] == [f"odds {t}" for t in DRAFT]
    assert s.in_flight_drafts == DRAFT


def test_unsent_drafts_are_not_in_the_request() -> None:
    s = drafted(session())
    rows = s.start_verification(False, "greedy")
    assert (rows.tokens, rows.num_drafts, rows.draft_probs) == (PROMPT, 0, ())
    assert s.in_flight_drafts == ()
    assert s.draft == list(DRAFT)


def test_a_new_attempt_sends_everything() -> None:
    s = asked()
    s.apply_verdict(Verdict(4, 14))
    s.path = ("cloud",)
    s.invalidate_path()
    rows = s.start_verification(True, "greedy")
    assert (s.attempt, s.path, rows.start, rows.tokens) == (1, (), 0, (*PROMPT, *DRAFT, 14))


# What a verdict agrees on.

TABLE = {
    # accepted, token -> new tokens, their origins, the draft cache, the target's caches
    "none accepted": (0, 50, (50,), ("corrected",), 3, 3),
    "some accepted": (2, 50, (10, 11, 50), ("accepted", "accepted", "corrected"), 5, 5),
    "all but the last": (3, 50, (10, 11, 12, 50), ("accepted",) * 3 + ("corrected",), 6, 6),
    "all and a bonus": (4, 14, (*DRAFT, 14), ("accepted",) * 4 + ("bonus",), 6, 7),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_verdict_commits_accepted_drafts_and_the_next_token(case: str) -> None:
    accepted, token, new, origins, kv, peer = TABLE[case]
    s = asked()
    assert s.apply_verdict(Verdict(accepted, token)) == (new, origins)
    assert s.tokens == [*PROMPT, *new]
    assert (s.draft_cached_len, s.target_cached_len, s.in_flight_drafts, s.draft, s.scores) == (kv, peer, None, [], {})


@pytest.mark.parametrize(("limit", "ends", "fit"), [(20, (), 3), (2, (), 2), (20, (12,), 2), (1, (12,), 1)])
def test_drafts_of_a_tree_beyond_the_answers_end_do_not_count_as_accepted(
    limit: int, ends: tuple[int, ...], fit: int
) -> None:
    """A trace ends there, too: it does not know what the target would accept further on."""
    s, verdict = session(limit, ends), Verdict(3, 50, kept_tree_nodes=(0, 2, 3))
    s.draft, s.draft_parents = list(DRAFT), (-1, -1, 0, 2)
    s.start_verification(True, "greedy")
    assert s.num_accepted_in_answer(verdict) == fit
    assert s.apply_verdict(verdict)[1].count("accepted") == fit


@pytest.mark.parametrize(("accepted", "fit"), [(0, 0), (1, 1), (2, 2), (4, 2)])
def test_drafts_that_are_read_off_the_text_count_as_accepted_up_to_the_answers_end(accepted: int, fit: int) -> None:
    """A stop token of the text, as a chat template sets it between turns, is drafted with what followed it."""
    s = asked((10, END, 12, 13))
    assert s.num_accepted_in_answer(Verdict(accepted, 14)) == fit
    _, origins = s.apply_verdict(Verdict(accepted, 14))
    assert origins.count("accepted") == fit


def test_the_draft_cache_never_extends_beyond_committed_tokens() -> None:
    """After a bonus the last draft was never fed: the cache ends before it, whatever the verdict says."""
    s = asked()
    s.apply_verdict(Verdict(4, 14))
    assert s.draft_cached_len == len(PROMPT) + len(DRAFT) - 1


def test_a_request_without_drafts_is_answered_by_the_cloud_alone() -> None:
    s = session()
    s.start_verification(True, "greedy")
    assert s.apply_verdict(Verdict(0, 7)) == ((7,), ("cloud",))


def test_if_drafts_are_not_sent_the_target_writes_the_token() -> None:
    s = asked(send=False)
    assert s.apply_verdict(Verdict(0, 7)) == ((7,), ("cloud",))
    assert (s.draft, s.draft_cached_len) == ([], 3)


@pytest.mark.parametrize(
    ("limit", "accepted", "new"),
    [(4, 4, DRAFT), (5, 4, (*DRAFT, 50)), (1, 0, (50,)), (2, 4, DRAFT[:2]), (3, 2, (10, 11, 50))],
)
def test_committed_tokens_end_at_the_limit(limit: int, accepted: int, new: tuple[int, ...]) -> None:
    s = asked(limit=limit)
    tokens, origins = s.apply_verdict(Verdict(accepted, 50))
    assert tokens == new
    assert len(origins) == len(new)
    assert s.is_complete is (len(new) == limit)
    assert s.draft_cached_len <= len(s.tokens)


@pytest.mark.parametrize(
    ("draft", "accepted", "token", "new"),
    [
        ((10, END), 2, 50, (10, END)),
        ((10, END), 1, 50, (10, 50)),
        ((10, 11), 2, END, (10, 11, END)),
        ((10, 11), 0, END, (END,)),
    ],
)
def test_nothing_is_committed_after_a_stop_token(
    draft: tuple[int, ...], accepted: int, token: int, new: tuple[int, ...]
) -> None:
    s = asked(draft)
    assert s.apply_verdict(Verdict(accepted, token))[0] == new
    assert s.is_complete is (new[-1] == END)


def test_a_stop_token_in_the_prompt_ends_nothing() -> None:
    assert not Session(GenerationRequest("s", (1, END), 5, (END,)), 0).is_complete


def test_accepted_drafts_of_a_tree_are_committed_in_path_order() -> None:
    s = asked()
    new, origins = s.apply_verdict(Verdict(2, 50, kept_tree_nodes=(1, 3), next_tree=DraftTree((60, 61), (-1, 0))))
    assert new == (11, 13, 50)
    assert origins == ("accepted", "accepted", "corrected")
    assert (s.kept_tree_nodes, s.draft, s.draft_parents) == ((1, 3), [60, 61], (-1, 0))


def test_a_draft_that_grows_by_a_tree_is_verified_as_one_tree() -> None:
    s = drafted(session(), (10, 11))
    assert s.draft_parents is None
    s.add_draft(DraftOutcome((12, 13, 14), {}, ((12,), (13,), (14,)), False, 4, parents=(-1, -1, 1)))
    seq = s.start_verification(True, "greedy")
    assert (seq.tokens[-5:], seq.parents) == ((10, 11, 12, 13, 14), (-1, 0, 1, 1, 3))
    assert s.apply_verdict(Verdict(4, 50, kept_tree_nodes=(0, 1, 3, 4)))[0] == (10, 11, 13, 14, 50)


# A draft that is accepted locally.


@pytest.mark.parametrize(("offline", "origin"), [(False, "device"), (True, "offline")])
def test_a_locally_accepted_draft_has_its_origin(offline: bool, origin: str) -> None:
    s = drafted(session())
    s.offline = offline
    assert s.accept_locally() == (DRAFT, (origin,) * 4)
    assert (s.draft, s.draft_cached_len, s.target_cached_len) == ([], 6, 0)


def test_a_locally_accepted_draft_ends_at_the_limit_or_a_stop_token() -> None:
    assert drafted(session(limit=2)).accept_locally()[0] == DRAFT[:2]
    assert drafted(session(), (10, END, 12)).accept_locally()[0] == (10, END)


@pytest.mark.parametrize(("draft", "ended"), [((), False), ((10,), False), ((END, 10), False), ((10, END), True)])
def test_nothing_is_drafted_after_a_stop_token(draft: tuple[int, ...], ended: bool) -> None:
    assert drafted(session(), draft).draft_ends_answer is ended


# What was drafted ahead.


def ahead(s: Session, *guesses: tuple[int, int | None]) -> None:
    for i, (accepted, token) in enumerate(guesses):
        s.branches.append(Branch(accepted, token, [70 + i, 80 + i], {"confidence": [0.4, 0.3]}, [(70 + i,), (80 + i,)]))


ADOPTED: dict[str, tuple[list[tuple[int, int | None]], Verdict, list[int], LookaheadOutcome]] = {
    "position and token match": ([(2, 50)], Verdict(2, 50), [70, 80], "hit"),
    "position alone is not enough": ([(2, 51)], Verdict(2, 50), [], "position"),
    "token alone is not enough": ([(1, 50)], Verdict(2, 50), [], "missed"),
    "one of two guesses": ([(2, 51), (2, 50)], Verdict(2, 50), [71, 81], "hit"),
    "full acceptance, bonus guessed": ([(4, 14)], Verdict(4, 14), [70, 80], "hit"),
    "full acceptance, another bonus": ([(4, 14)], Verdict(4, 15), [], "position"),
    "the bonus was not drafted yet": ([(4, None)], Verdict(4, 14), [], "position"),
}


@pytest.mark.parametrize("case", ADOPTED)
def test_a_branch_survives_only_if_its_assumed_verdict_comes(case: str) -> None:
    guesses, verdict, draft, guess = ADOPTED[case]
    s = asked()
    ahead(s, *guesses)
    assert s.lookahead_outcome(verdict, []) == guess
    s.apply_verdict(verdict)
    assert s.draft == draft
    assert s.branches == []
    if draft:  # the next guess reads them
        assert s.scores == {"confidence": [0.4, 0.3]}
        assert len(s.top_candidates) == 2


@pytest.mark.parametrize(("on_chip", "outcome"), [(False, "position"), (True, "hit")])
def test_a_branch_without_drafts_is_hit_only_while_one_is_made(on_chip: bool, outcome: LookaheadOutcome) -> None:
    s = asked()
    s.branches = [Branch(2, 50)]
    assert s.lookahead_outcome(Verdict(2, 50), s.branches if on_chip else []) == outcome


def test_an_adopted_draft_is_not_in_the_draft_models_cache() -> None:
    s = asked()
    ahead(s, (2, 50))
    s.apply_verdict(Verdict(2, 50))
    assert s.draft_cached_len == 5 < len(s.tokens)


def test_a_new_request_drops_the_branches_of_the_last_one() -> None:
    s = asked()
    ahead(s, (2, 50))
    s.start_verification(True, "greedy")
    assert s.branches == []


# Random numbers.


def test_keyed_random_numbers_depend_on_seed_session_position_and_purpose_only() -> None:
    a, b = session(), session(limit=3)
    assert a.uniform("draft") == b.uniform("draft") == uniform(key(0, "s"), 3, "draft")
    others: list[Any] = [
        Session(GenerationRequest("t", PROMPT, 20), 0),
        Session(GenerationRequest("s", PROMPT, 20), 1),
        Session(GenerationRequest("s", (1,), 20), 0),
    ]
    draws = {a.uniform("draft"), a.uniform("accept"), *(s.uniform("draft") for s in others)}
    assert len(draws) == 5


def test_keyed_random_numbers_are_equal_in_all_processes() -> None:
    assert (key(0, "r00000"), uniform(key(0, "r00000"), 3, "accept")) == (16603851439083592244, 0.0055091020158380966)
    draws = [uniform(key(7, f"r{i}"), j, "accept") for i in range(40) for j in range(50)]
    assert min(draws) >= 0
    assert max(draws) < 1
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)
