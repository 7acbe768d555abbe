"""Stop strings end an answer. One may be written in any tokens, so the text of the tokens is searched."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from serving.messages import StopText

TokenText = Callable[[int], str]
"""The text that a token adds to an answer, where another token precedes it."""


def no_token_text(token: int) -> str:
    """Stands for a tokenizer where no request has stop strings."""
    raise RuntimeError(f"a request has stop strings, and the text of token {token} is not known here: no tokenizer")


def advance(stop: StopText, tokens: Sequence[int], text_of: TokenText) -> tuple[StopText, int | None]:
    """The answer's end after these tokens, and the index of the one that completes a stop string (None: none does).

    Blanks before the answer's first word do not count, as in `Prompt.extract_answer`.
    """
    size, tail = max(map(len, stop.strings)), stop.tail
    for i, token in enumerate(tokens):
        text = tail + text_of(token) if tail else text_of(token).lstrip()
        tail = text[-size:]
        if any(string in text for string in stop.strings):
            return replace(stop, tail=tail), i
    return replace(stop, tail=tail), None
