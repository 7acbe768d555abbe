from hypothesis import example, given
from hypothesis import strategies as st

from serving.frontend.openai.detokenizer import StopMatcher


def shown(stops: tuple[str, ...], pieces: list[str]) -> str:
    machine = StopMatcher(stops)
    text = "".join(machine.push(piece) for piece in pieces)
    return text + machine.flush()


def expected(stops: tuple[str, ...], text: str) -> str:
    """The definition: the shortest beginning of the text that ends with a stop string, without that string."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))]
    return text


LETTERS = st.text("ab🙂", max_size=6)


@given(st.lists(st.text("ab🙂", min_size=1, max_size=4), max_size=4), st.lists(LETTERS, max_size=8))
@example(["aab"], ["a", "a", "a", "b"])
@example(["abab", "b🙂"], ["aba", "b🙂"])
def test_no_part_of_a_stop_string_passes_however_the_text_is_divided(stops: list[str], pieces: list[str]) -> None:
    assert shown(tuple(stops), pieces) == expected(tuple(stops), "".join(pieces))


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.lists(LETTERS, max_size=8))
def test_passed_text_is_a_prefix_of_the_final_text(stops: list[str], pieces: list[str]) -> None:
    machine, whole = StopMatcher(tuple(stops)), expected(tuple(stops), "".join(pieces))
    text = ""
    for piece in pieces:
        text += machine.push(piece)
        assert whole.startswith(text)
        assert not any(stop in text for stop in stops)


def test_text_passes_at_once_where_no_stop_string_can_begin() -> None:
    machine = StopMatcher(("###",))
    assert [machine.push(text) for text in ("a", "b#", "#", "c")] == ["a", "b", "", "##c"]
