from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.frontend.openai.detokenizer import IncrementalDetokenizer, StopMatcher, decode
from tests.support.tiny_tokenizers import byte_fallback, byte_level, words

KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "words": words}


def pieces(hf: object, tokens: list[int]) -> list[str]:
    decoder = IncrementalDetokenizer(hf)
    return [*(decoder.push(token) for token in tokens), decoder.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_texts_of_any_tokens_join_to_the_full_decoding(kind: str, data: st.DataObject) -> None:
    hf = KINDS[kind]()
    # Models may pad their vocabulary: ids behind the last token happen.
    tokens = data.draw(st.lists(st.integers(0, len(hf) + 2), max_size=30))
    assert "".join(pieces(hf, tokens)) == decode(hf, tokens)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@settings(max_examples=80, deadline=None)
@given(text=st.text(st.one_of(st.sampled_from("ab 🙂é東👩‍🚀"), st.characters(codec="utf-8")), max_size=20))
def test_no_text_holds_an_incomplete_character(kind: str, text: str) -> None:
    hf = KINDS[kind]()
    tokens = hf(text, add_special_tokens=False)["input_ids"]
    found = pieces(hf, tokens)
    assert "".join(found) == decode(hf, tokens)
    assert ("\ufffd" in "".join(found)) == ("\ufffd" in text)


def test_a_character_is_emitted_at_its_last_byte() -> None:
    hf = byte_level()
    tokens = hf("a𝄞b", add_special_tokens=False)["input_ids"]
    assert len(tokens) == 6
    assert pieces(hf, tokens) == ["a", "", "", "", "𝄞", "b", ""]


def test_a_run_of_byte_tokens_is_held_back_until_it_ends() -> None:
    hf = byte_fallback()
    tokens = hf("a😀b", add_special_tokens=False)["input_ids"]
    assert pieces(hf, tokens)[-7:] == ["a", "", "", "", "", "😀b", ""]


@pytest.mark.parametrize("invisible", ["</s>", "beyond the vocabulary"])
def test_a_token_without_text_does_not_end_a_run_of_bytes(invisible: str) -> None:
    hf = byte_fallback()
    between = len(hf) if invisible != "</s>" else hf.eos_token_id
    good, bad = hf.convert_tokens_to_ids(["<0x41>", "<0xFF>"])
    tokens = [good, between, bad]
    assert "".join(pieces(hf, tokens)) == decode(hf, tokens) == "\ufffd\ufffd"


def test_an_incomplete_character_at_the_end_becomes_a_replacement_character() -> None:
    hf = byte_level()
    tokens = hf("a😀", add_special_tokens=False)["input_ids"][:-1]
    assert "".join(pieces(hf, tokens)) == decode(hf, tokens) == "a\ufffd"


class CountingTokenizer:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, hf: Any) -> None:
        self._hf, self.num_decoded = hf, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hf, name)

    def decode(self, tokens: list[int], **how: Any) -> str:
        self.num_decoded += len(tokens)
        return str(self._hf.decode(tokens, **how))


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("byte", range(4))
def test_tokens_that_complete_no_character_cost_the_same_each(kind: str, byte: int) -> None:
    hf = KINDS[kind]()
    garbage = [hf("\U0001d11e", add_special_tokens=False)["input_ids"][-4:][byte]] * 600
    counting = CountingTokenizer(hf)
    found = pieces(counting, garbage)
    assert counting.num_decoded < 40 * len(garbage)
    assert "".join(found) == decode(hf, garbage)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_long_runs_of_broken_characters_join_to_the_full_decoding(data: st.DataObject) -> None:
    hf = byte_level()
    parts = hf("\U0001d11e\u20ac", add_special_tokens=False)["input_ids"]
    token = st.one_of(st.sampled_from(parts), st.sampled_from(parts), st.just(len(hf)), st.just(hf.eos_token_id))
    tokens = data.draw(st.lists(token, min_size=40, max_size=120))
    assert "".join(pieces(hf, tokens)) == decode(hf, tokens)


def test_words_keep_their_spaces_after_a_special_token() -> None:
    hf = words()
    the, key, end = hf.convert_tokens_to_ids(["the", "key", "<eos>"])
    assert pieces(hf, [the, end, key]) == ["the", "", " key", ""]


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
