"""Tokens to text while they come: only text that no later token can change.

Stop strings: where an answer ends, and what may be shown before that is known.

One answer while it is written: tokens in, text out, up to an end token, a stop string or the limit.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serving.frontend.openai.gateway import TokenDelta
from serving.frontend.openai.request_handlers import FinishReason
from serving.messages import Origin

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_REPLACEMENT_CHAR = "\ufffd"
"""What a decoder writes for bytes that are no character, or not yet one."""


class IncrementalDetokenizer:
    """The pieces that `push` and `flush` return, joined, are the text of all tokens, without special ones.

    Text waits while its last character may be half there. So do runs of byte tokens (SentencePiece's byte fallback),
    which decode together or not at all. A window of earlier tokens gives each decoding its context (leading spaces).
    """

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self._special = {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self._window: list[int] = []
        self._num_emitted = 0
        """The window's first `_num_emitted` tokens are out already, as `_emitted_text`."""
        self._emitted_text = ""
        self._in_byte_run = False

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        self._window.append(token)
        name = None if token in self._special else self._hf.convert_ids_to_tokens(token)
        if name is not None:  # a token without text does not end a run of bytes
            self._in_byte_run = bool(_BYTE_TOKEN.fullmatch(name))
        text = decode(self._hf, self._window)
        if self._in_byte_run or text.endswith(_REPLACEMENT_CHAR) or len(text) <= len(self._emitted_text):
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """The rest: no token follows."""
        return self._emit(decode(self._hf, self._window))

    def _emit(self, text: str) -> str:
        new = text[len(self._emitted_text) :]
        if new:
            self._window = self._window[self._num_emitted :]
            self._num_emitted, self._emitted_text = len(self._window), decode(self._hf, self._window)
        return new


def decode(hf: Any, tokens: list[int] | tuple[int, ...]) -> str:
    """The text of tokens, without special ones; spaces stay as the model wrote them."""
    text: str = hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


class StopMatcher:
    """Text passes until a stop string is complete; no part of that string passes.

    The first to be complete ends the text (of two at once, the longer), so the result is the same however the text
    is cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._pending = ""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that is certain to stand before any stop string."""
        if self.matched:
            return ""
        whole, self._pending = self._pending + text, ""
        found = [(at + len(stop), at) for stop in self._stops if (at := whole.find(stop)) >= 0]
        if found:
            self.matched = True
            return whole[: min(found)[1]]
        passed = len(whole) - self._partial_match_len(whole)
        self._pending = whole[passed:]
        return whole[:passed]

    def flush(self) -> str:
        """What was held back in vain."""
        rest, self._pending = self._pending, ""
        return rest

    def _partial_match_len(self, text: str) -> int:
        """The longest end of the text with which a stop string begins."""
        longest = max(map(len, self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class AnswerWriter:
    """`count` hears the origin of each token that belongs to the answer; what a stop string cuts off does not."""

    def __init__(self, tokenizer: "Tokenizer", stops: tuple[str, ...], on_token: Callable[[Origin], None]) -> None:
        self.tokens: list[int] = []
        """All that the gateway delivered."""
        self.finish_reason: FinishReason | None = None
        """Why it ended; None while it goes on."""
        self._stop_tokens, self._detokenizer, self._stop_matcher, self._on_token = (
            tokenizer.eos_token_ids,
            IncrementalDetokenizer(tokenizer.hf),
            StopMatcher(stops),
            on_token,
        )

    def add(self, delta: TokenDelta) -> str:
        """The text that a piece makes certain."""
        self.tokens.extend(delta.tokens)
        text = ""
        for token, origin in zip(delta.tokens, delta.origins, strict=True):
            self._on_token(origin)
            if token not in self._stop_tokens:
                text += self._stop_matcher.push(self._detokenizer.push(token))
            if self._stop_matcher.matched:
                self.finish_reason = "stop"
                return text
        return text + self._close() if delta.ending == "complete" else text

    def _close(self) -> str:
        text = self._stop_matcher.push(self._detokenizer.flush()) + self._stop_matcher.flush()
        ended = self._stop_matcher.matched or (bool(self.tokens) and self.tokens[-1] in self._stop_tokens)
        self.finish_reason = "stop" if ended else "length"
        return text
