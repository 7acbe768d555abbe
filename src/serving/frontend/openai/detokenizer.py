"""Tokens to text, incrementally: only text that no later token can change, up to a stop token or stop string."""

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
"""What tokenizers decode invalid or incomplete UTF-8 to."""
_MAX_HELD_TOKENS = 16
"""Tokens held back before a cut between them is looked for; one character takes four at most."""


class IncrementalDetokenizer:
    """The texts that `push` and `flush` return, joined, are the text of all tokens, without special ones.

    Text is held back while its last character may be incomplete, and during runs of byte tokens (SentencePiece's byte
    fallback), which decode only as a whole. A window of earlier tokens gives each decoding its context: leading spaces.
    """

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self._special = {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self._window: list[int] = []
        self._num_emitted = 0
        """The window's first `_num_emitted` tokens were returned already, as `_emitted_text`."""
        self._emitted_text = ""
        self._in_byte_run = False

    def push(self, token: int) -> str:
        """The text that this token completes."""
        self._window.append(token)
        name = None if token in self._special else self._hf.convert_ids_to_tokens(token)
        if name is not None:  # a token without text does not end a run of bytes
            self._in_byte_run = bool(_BYTE_TOKEN.fullmatch(name))
        if self._in_byte_run:
            return ""
        text = decode(self._hf, self._window)
        if text.endswith(_REPLACEMENT_CHAR):
            return self._emit_whole_characters(text)
        return self._emit(text, len(self._window))

    def flush(self) -> str:
        """The text held back, after the last token."""
        return self._emit(decode(self._hf, self._window), len(self._window))

    def _emit(self, text: str, num_tokens: int) -> str:
        """`text` is that of the window's first `num_tokens`."""
        new = text[len(self._emitted_text) :]
        if new:
            self._window, emitted = self._window[self._num_emitted :], num_tokens - self._num_emitted
            self._num_emitted, self._emitted_text = emitted, decode(self._hf, self._window[:emitted])
        return new

    def _emit_whole_characters(self, text: str) -> str:
        """Emits the first part of a long window. `text` is that of the window and ends in an incomplete character.

        The window is cut where the texts of both parts make up the text of the whole: no character lies across it.
        """
        end = len(self._window)
        if (end - self._num_emitted) % _MAX_HELD_TOKENS:
            return ""
        for cut in range(end - 1, end - _MAX_HELD_TOKENS, -1):
            before, after = decode(self._hf, self._window[:cut]), decode(self._hf, self._window[cut:])
            if after and before + after == text:
                return self._emit(before, cut)
        return ""


def decode(hf: Any, tokens: list[int] | tuple[int, ...]) -> str:
    """The text of tokens, without special ones and without clean-up of spaces."""
    text: str = hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


class StopMatcher:
    """Passes text through up to the first complete stop string, of which no part passes.

    Of two stop strings that complete at the same character, the longer counts, so the result does not depend on how the
    text is divided between calls of `push`.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._pending = ""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that cannot be part of a stop string."""
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
        """The text held back, after the last `push`."""
        rest, self._pending = self._pending, ""
        return rest

    def _partial_match_len(self, text: str) -> int:
        """Length of the longest suffix that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class AnswerWriter:
    """Turns the deltas of one answer into text, up to a stop token, a stop string or the limit.

    `on_token` gets the origin of each token of the answer; tokens after a stop string do not count.
    """

    def __init__(self, tokenizer: "Tokenizer", stops: tuple[str, ...], on_token: Callable[[Origin], None]) -> None:
        self.tokens: list[int] = []
        """All tokens that the gateway delivered."""
        self.finish_reason: FinishReason | None = None
        """None while the answer goes on."""
        self._stop_tokens, self._on_token = tokenizer.eos_token_ids, on_token
        self._detokenizer, self._stop_matcher = IncrementalDetokenizer(tokenizer.hf), StopMatcher(stops)

    def add(self, delta: TokenDelta) -> str:
        """The text that this delta completes."""
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
