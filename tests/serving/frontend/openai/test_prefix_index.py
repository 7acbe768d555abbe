from hypothesis import given
from hypothesis import strategies as st

from serving.frontend.openai.gateway import Conversation, PrefixIndex

Tokens = tuple[int, ...]


def made(bound: int = 3) -> tuple[PrefixIndex, list[str]]:
    forgotten: list[str] = []
    return PrefixIndex(bound, forgotten.append), forgotten


def turn(conversations: PrefixIndex, prompt: Tokens, answer: Tokens) -> Conversation | None:
    taken = conversations.acquire(prompt)
    conversations.store(taken, prompt, answer)
    return taken


def test_a_next_turn_shares_the_whole_earlier_turn() -> None:
    conversations, _ = made()
    first = turn(conversations, (1, 2, 3), (4, 5))
    assert first == Conversation("conversation-1", 0)
    assert turn(conversations, (1, 2, 3, 4, 5, 6), (7,)) == Conversation("conversation-1", 5)
    assert conversations.longest_match((1, 2, 3, 4, 5, 6, 7, 8)) == Conversation("conversation-1", 7)


def test_an_answer_that_the_next_prompt_repeats_partly_is_shared_partly() -> None:
    conversations, _ = made()
    turn(conversations, (1, 2, 3), (90, 91, 4, 5))
    assert conversations.longest_match((1, 2, 3, 90, 5)) == Conversation("conversation-1", 4)
    assert conversations.longest_match((1, 2, 3, 5)) == Conversation("conversation-1", 3)


def test_a_prompt_that_shares_only_a_beginning_is_another_conversation() -> None:
    """A common system prompt must not evict another conversation's cache."""
    conversations, _ = made()
    turn(conversations, (1, 2, 3), (4,))
    assert conversations.longest_match((1, 2, 9, 9)) is None
    assert turn(conversations, (1, 2, 9, 9), (4,)) == Conversation("conversation-2", 0)


def test_a_repeated_prompt_still_computes_its_last_token() -> None:
    conversations, _ = made()
    turn(conversations, (1, 2, 3), (4,))
    assert conversations.longest_match((1, 2, 3)) == Conversation("conversation-1", 2)


def test_the_longest_match_of_several_is_found() -> None:
    conversations, _ = made()
    turn(conversations, (1, 2), (3,))
    turn(conversations, (7, 8), (9,))
    turn(conversations, (1, 5), (6,))
    assert conversations.longest_match((1, 5, 6, 6)) == Conversation("conversation-3", 3)


def test_a_conversation_serves_one_request_at_a_time() -> None:
    conversations, _ = made()
    turn(conversations, (1, 2), (3,))
    assert conversations.acquire((1, 2, 3, 4)) == Conversation("conversation-1", 3)
    assert conversations.acquire((1, 2, 3, 4)) == Conversation("conversation-2", 0)


def test_the_least_recently_used_conversation_is_evicted() -> None:
    conversations, forgotten = made(bound=2)
    turn(conversations, (1,), (1,))
    turn(conversations, (2,), (2,))
    turn(conversations, (1, 1, 1), (1,))
    turn(conversations, (3,), (3,))
    assert forgotten == ["conversation-2"]
    assert len(conversations) == 2


def test_an_incomplete_turn_is_evicted() -> None:
    conversations, forgotten = made()
    conversations.discard(conversations.acquire((1, 2)))
    assert forgotten == ["conversation-1"]
    assert conversations.longest_match((1, 2, 3)) is None


def test_capacity_0_keeps_no_conversation() -> None:
    conversations, forgotten = made(bound=0)
    assert turn(conversations, (1,), (2,)) is None
    assert (len(conversations), forgotten) == (0, [])


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.booleans()), max_size=30))
def test_capacity_and_prefix_hold_for_any_sequence_of_requests(asked: list[tuple[list[int], bool]]) -> None:
    conversations, forgotten = made(bound=2)
    held: dict[str, Tokens] = {}
    for prompt, well in asked:
        tokens = tuple(prompt)
        taken = conversations.acquire(tokens)
        assert taken is not None
        assert taken.shared_len < len(tokens)
        assert held.get(taken.name, ())[: taken.shared_len] == tokens[: taken.shared_len]
        if well:
            held[taken.name] = (*tokens, 7)
            conversations.store(taken, tokens, (7,))
        else:
            held.pop(taken.name, None)
            conversations.discard(taken)
        for name in forgotten:
            held.pop(name, None)
        assert len(conversations) == len(held) <= 2
