"""Drafts that are read off the text: what once followed the text's last tokens."""

import pytest

from serving.core.session import Session
from serving.messages import GenerationRequest
from serving.policy.slots.draft import LookupDraft


def proposed(text: tuple[int, ...], max_new_tokens: int = 20, **options: int) -> tuple[int, ...]:
    found = LookupDraft(**{"k": 4, **options}).proposal(Session(GenerationRequest("s", text, max_new_tokens), 0))
    return found.tokens if found else ()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ((1, 2, 3, 4, 5, 6, 7, 1, 2, 3), (4, 5, 6, 7)),
        ((9, 3, 8, 8, 1, 3, 7, 7, 7, 7, 3), (7, 7, 7, 7)),
        ((1, 3, 5, 5, 5, 5, 2, 3, 6, 6, 6, 6, 1, 3), (5, 5, 5, 5)),
        ((1, 2, 1, 2), (1, 2)),
        ((1, 2, 3, 4), ()),
        ((1,), ()),
    ],
    ids=["three tokens", "the latest place", "two tokens before one", "up to the end", "nothing alike", "one token"],
)
def test_a_draft_is_what_followed_the_last_tokens(text, tokens):
    assert proposed(text) == tokens


def test_a_draft_fits_into_the_answer():
    assert proposed((1, 2, 3, 4, 5, 1), max_new_tokens=2) == (2, 3)


def test_fewer_tokens_than_the_shortest_suggest_nothing():
    assert proposed((5, 3, 8, 8, 1, 3), shortest=2) == ()


@pytest.mark.parametrize("options", [{"k": 0}, {"shortest": 0}, {"longest": 2, "shortest": 3}])
def test_lengths_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"policy\.draft"):
        LookupDraft(**{"k": 4, **options})
