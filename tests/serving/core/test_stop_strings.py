"""Where an answer ends by its stop strings, however its text is divided into tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.session import Session
from serving.core.stop_strings import advance, no_token_text
from serving.messages import DraftOutcome, GenerationRequest, StopText, Verdict
from serving.workload.prompt import Prompt

PIECES = ("a", "b", "ab", "\n", "\nQ", "Q:", "#", "##", " ", "\n\n", "")


def text_of(token: int) -> str:
    return PIECES[token]


def text(*tokens: int) -> str:
    return "".join(map(text_of, tokens))


@given(
    st.lists(st.integers(0, len(PIECES) - 1)),
    st.lists(st.sampled_from(["\n", "\nQ:", "###", "ab"]), min_size=1, max_size=2).map(tuple),
    st.integers(0, 20),
)
def test_an_answer_ends_with_the_token_that_completes_a_stop_string(tokens, strings, cut):
    begun, end = advance(StopText(strings), tokens[:cut], text_of)
    if end is None:
        _, later = advance(begun, tokens[cut:], text_of)
        end = None if later is None else later + len(tokens[:cut])
    complete = [i for i in range(len(tokens)) if any(s in text(*tokens[: i + 1]).lstrip() for s in strings)]
    assert end == (complete[0] if complete else None)


@given(st.lists(st.integers(0, len(PIECES) - 1)), st.sampled_from(["\n", "\nQ:", "###"]))
def test_nothing_of_the_scored_answer_is_lost(tokens, string):
    prompt, end = Prompt("1", "", (), "", stop=(string,)), advance(StopText((string,)), tokens, text_of)[1]
    kept = tokens if end is None else tokens[: end + 1]
    assert prompt.extract_answer(text(*kept)) == prompt.extract_answer(text(*tokens))


def session(limit: int = 20) -> Session:
    return Session(GenerationRequest("s", (0,), limit, stop_strings=("\nQ:",)), 0, token_text=text_of)


def drafted(*tokens: int) -> DraftOutcome:
    return DraftOutcome(tokens, {}, ((),) * len(tokens), False, 0)


def test_what_follows_a_stop_string_is_not_committed():
    s = session()
    s.add_draft(drafted(0, 3, 5))
    assert s.draft_ends_answer
    s.start_verification(True, "greedy")
    tokens, origins = s.apply_verdict(Verdict(3, 1))
    assert tokens == (0, 3, 5)
    assert origins == ("accepted",) * 3
    assert s.is_complete


def test_a_stop_string_may_be_written_by_the_target_and_the_drafter_in_turn():
    s = session()
    s.start_verification(True, "greedy")
    s.apply_verdict(Verdict(0, 0))
    s.start_verification(True, "greedy")
    s.apply_verdict(Verdict(0, 3))
    assert not s.is_complete
    s.add_draft(drafted(5))
    assert s.draft_ends_answer
    s.accept_locally()
    assert s.is_complete


def test_blanks_before_the_answer_end_nothing():
    s = session()
    s.add_draft(drafted(3, 5))  # "\nQ:" without an answer before it is the answer "Q:"
    assert not s.draft_ends_answer


def test_without_a_tokenizer_stop_strings_are_refused():
    with pytest.raises(RuntimeError, match=r"a request has stop strings, and the text of token 7 is not known here"):
        advance(StopText(("#",)), (7,), no_token_text)
