"""Tokens to text while they come: only text that no later token can change."""

import re
from typing import Any

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_HALF = "\ufffd"
"""What a decoder writes for bytes that are no character, or not yet one."""


class Decoder:
    """The pieces that `push` and `flush` return, joined, are the text of all tokens, without special ones.

    Text waits while its last character may be half there. So do runs of byte tokens (SentencePiece's byte fallback),
    which decode together or not at all. A window of earlier tokens gives each decoding its context (leading spaces).
    """

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self._special = {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self._window: list[int] = []
        self._old = 0
        """The window's first `_old` tokens are out already, as `_base`."""
        self._base = ""
        self._in_bytes = False

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        self._window.append(token)
        name = None if token in self._special else self._hf.convert_ids_to_tokens(token)
        if name is not None:  # a token without text does not end a run of bytes
            self._in_bytes = bool(_BYTE.fullmatch(name))
        text = decode(self._hf, self._window)
        if self._in_bytes or text.endswith(_HALF) or len(text) <= len(self._base):
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """The rest: no token follows."""
        return self._emit(decode(self._hf, self._window))

    def _emit(self, text: str) -> str:
        new = text[len(self._base) :]
        if new:
            self._window = self._window[self._old :]
            self._old, self._base = len(self._window), decode(self._hf, self._window)
        return new


def decode(hf: Any, tokens: list[int] | tuple[int, ...]) -> str:
    """The text of tokens, without special ones; spaces stay as the model wrote them."""
    text: str = hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text
