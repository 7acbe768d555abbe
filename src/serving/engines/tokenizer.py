"""A checkpoint's tokenizer, and the check that two models of a pair have the same one."""

import json
import re
import socket
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

_TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "model", "decoder")
HUB_TIMEOUT_S = 5.0
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PROBE_TEXT = "Ünïcode 世界 🙂\n\tif x >= 10: return 'a-b_c'  # 3.14, 1,000"


class Tokenizer:
    """The `transformers` tokenizer of a checkpoint, with its end tokens.

    Args:
        path: the checkpoint, a directory or a Hub name.

    Raises ValueError if `transformers` finds no tokenizer there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.hf = path, _load_hf_tokenizer(path)
        self.eos_token_ids = _eos_token_ids(path, self.hf)
        """Tokens that end a text."""
        self._token_texts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.hf)

    def decode(self, tokens: tuple[int, ...] | list[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self.hf.decode(list(tokens), skip_special_tokens=True)
        return text

    def token_text(self, token: int) -> str:
        """The text that a token adds after another one; "" for a special token. Parts of a character are
        U+FFFD.
        """
        if token not in self._token_texts:
            before = self._plain_token
            self._token_texts[token] = self.decode((before, token))[len(self.decode((before,))) :]
        return self._token_texts[token]

    @cached_property
    def _plain_token(self) -> int:
        """A token that has text whatever follows it."""
        return int(self.hf("a", add_special_tokens=False)["input_ids"][-1])


def check_same_tokenizer(a: str | Path, b: str | Path) -> None:
    """Raises ValueError, naming the first token that differs, if two checkpoints have different tokens.

    Padding of the models' vocabularies, chat templates and names of special tokens may differ.
    """
    contents = [_tokenization_rules(path) for path in (a, b)]
    if contents[0] is not None and contents[0] == contents[1]:
        return
    first, second = _load_hf_tokenizer(a), _load_hf_tokenizer(b)
    _check_same_vocabulary(a, _tokens_by_id(first), b, _tokens_by_id(second))
    tokens, others = first.encode(_PROBE_TEXT), second.encode(_PROBE_TEXT)
    if tokens != others:
        raise ValueError(
            f"{a} and {b} have the same vocabulary but split text differently ({_PROBE_TEXT!r}: {tokens} and "
            f"{others}); a pair needs one tokenizer"
        )


def _tokenization_rules(path: str | Path) -> object:
    """The parts of tokenizer.json that decide how text becomes tokens; None without that file."""
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); fetch or train the checkpoint again") from error
    added = [(token["id"], token["content"]) for token in content.get("added_tokens", [])]
    return [content.get(part) for part in _TOKENIZER_PARTS], added, content.get("post_processor")


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {i: token for token, i in tokenizer.get_vocab().items()}


def _check_same_vocabulary(a: str | Path, first: dict[int, str], b: str | Path, second: dict[int, str]) -> None:
    for i in sorted(first.keys() | second.keys()):
        if first.get(i) != second.get(i):
            raise ValueError(
                f"the tokenizers of {a} and {b} differ: token {i} is {_token_repr(first, i)} in the one and "
                f"{_token_repr(second, i)} in the other ({len(first)} and {len(second)} tokens); a pair needs one "
                "tokenizer, so choose two models of one family"
            )


def _token_repr(vocabulary: dict[int, str], i: int) -> str:
    return repr(vocabulary[i]) if i in vocabulary else "missing"


def _load_hf_tokenizer(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    if _HUB_NAME.fullmatch(str(path)) and not Path(path).is_dir():
        _check_hub(str(path))
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"there is no tokenizer that transformers can open at {path}: {error}") from error


def _check_hub(name: str) -> None:
    """Raises ValueError for a model that neither this machine's cache nor a reachable Hub has.

    The library itself would try for a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str) or getproxies():
        return
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), HUB_TIMEOUT_S).close()
    except OSError as problem:
        raise ValueError(
            f"{name} is not on this machine, and the Hugging Face Hub cannot be reached from here ({problem}). Give "
            "the path of a copy (model.device.path, model.cloud.path), or take a pair that needs no Hub: model=tiny or "
            "model=smollm2"
        ) from problem


def _eos_token_ids(path: str | Path, tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's end token and those of generation_config.json, where chat models add theirs."""
    ends = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    file = _generation_config(path)
    if file is not None:
        named = json.loads(file.read_text()).get("eos_token_id") or []
        ends.update([named] if isinstance(named, int) else named)
    return tuple(sorted(ends))


def _generation_config(path: str | Path) -> Path | None:
    """The file in the directory, or the Hub's, which `transformers` fetches once; None if there is none."""
    from transformers.utils import cached_file

    try:
        return Path(cached_file(str(path), "generation_config.json"))
    except OSError:
        return None
