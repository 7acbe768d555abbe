"""The texts of a worker's caches, beside a model that keeps every text whole."""

import random

import pytest

from serving.core.cached_prefixes import CachedPrefixes


def test_a_new_text_begins_behind_the_longest_prefix_in_whole_blocks() -> None:
    known = CachedPrefixes(4)
    known.write("a", 0, (1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert known.longest((1, 2, 3, 4, 5, 6, 7, 8, 9, 10)) == ("a", 8)
    assert known.longest((1, 2, 3, 4, 5, 6, 7, 8)) == ("a", 4)  # one token at least must run
    assert known.longest((1, 2, 3, 0, 5)) == ("", 0)
    known.write("a", 9, (10, 11, 12))
    assert known.longest(tuple(range(1, 20))) == ("a", 12)


def test_of_several_sessions_the_newest_is_named() -> None:
    known = CachedPrefixes(2)
    known.write("a", 0, (1, 2, 3, 4))
    known.write("b", 0, (1, 2, 5, 6))
    assert known.longest((1, 2, 9)) == ("b", 2)
    assert known.longest((1, 2, 9), other_than="b") == ("a", 2)
    assert known.longest((1, 2, 5, 6, 9), other_than="b") == ("a", 2)
    known.drop("b")
    assert known.longest((1, 2, 9)) == ("a", 2)
    assert known.longest((1, 2, 9), other_than="a") == ("", 0)
    known.drop("a")
    assert known.longest((1, 2, 9)) == ("", 0)


def test_what_follows_an_unknown_token_is_not_noted() -> None:
    known = CachedPrefixes(2)
    known.write("a", 0, (1, 2, 3, 4))
    known.write("a", 6, (7, 8))
    assert known.longest((1, 2, 3, 4, 5, 6, 7, 8, 9)) == ("a", 4)
    assert known.has("a", 4)
    assert not known.has("a", 6)
    assert not known.has("b", 2)


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_whole_texts(seed: int) -> None:
    r = random.Random(seed)
    size = r.choice([1, 2, 3, 5])
    known, texts = CachedPrefixes(size), dict[str, tuple[int, ...]]()
    for _ in range(300):
        session = r.choice("abcde")
        text = texts.get(session, ())
        match r.choice(["write", "write", "cut", "drop", "find"]):
            case "write":
                start = r.randint(0, len(text))
                tokens = tuple(r.choices((1, 2), k=r.randint(0, 8)))
                texts[session] = text[:start] + tokens
                known.write(session, start, tokens)
            case "cut":
                texts[session] = text[: r.randint(0, len(text) + 2)]
                known.cut(session, len(texts[session]))
            case "drop":
                texts.pop(session, None)
                known.drop(session)
        wanted = tuple(r.choices((1, 2), k=r.randint(0, 10)))
        found, length = known.longest(wanted)
        most = max((shared(text, wanted) for text in texts.values()), default=0)
        assert length == min(most // size * size, max(0, (len(wanted) - 1) // size * size)), (texts, wanted)
        assert not length or shared(texts[found], wanted) >= length
    for session in "abcde":
        known.drop(session)
    assert not known._root.children


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
