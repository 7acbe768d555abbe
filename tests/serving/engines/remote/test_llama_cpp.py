"""A real llama.cpp server with a converted checkpoint writes the tokens of torch."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engines.remote.engine import RemoteEngine
from serving.engines.remote.opening import connect_remote
from serving.engines.tokenizer import Tokenizer
from serving.messages import ForwardWork, SequenceSlice, Span
from tests.serving.engines.remote.conftest import server
from tests.serving.engines.remote.test_served_policies import HYBRID, queries, served
from tests.serving.engines.remote.test_served_policies import made as setup_of

pytestmark = pytest.mark.slow

PROMPTS = 40
TOKENS = 24


@pytest.fixture(scope="module")
def url(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a llama.cpp server with a key and the model name `large`."""
    why = "xllamacpp and gguf are not installed (the extra llama_cpp): no real llama.cpp server is tested"
    xllamacpp = pytest.importorskip("xllamacpp", reason=why)
    pytest.importorskip("gguf", reason=why)
    from serving.engines.llama_cpp.gguf import convert

    file = tmp_path_factory.mktemp("gguf") / "large.gguf"
    convert(pair[1], file)
    how = xllamacpp.CommonParams()
    how.model.path, how.model_alias, how.hostnames, how.port = str(file), {"large"}, ["127.0.0.1"], 0
    how.cache_type_k = how.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # in fp16 3 of 1,394 tokens differ
    how.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    how.n_ctx, how.n_parallel, how.cpuparams.n_threads, how.verbosity = 1024, 4, 1, -1
    running = xllamacpp.Server(how)
    yield f"{running.listening_address}/v1"
    del running


def opened(url: str, tokenizer: Tokenizer, **how: Any) -> RemoteEngine:
    return connect_remote(server(url, **how), tokenizer, len(tokenizer), False)


@pytest.mark.parametrize("span", [1, 8])
def test_llama_cpp_writes_the_text_of_torch(
    url: str, pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Any, span: int
) -> None:
    import random

    engine, rng, began, tokens = opened(url, tokenizer, tokens_per_request=span), random.Random(7), 0.0, 0
    for number in range(PROMPTS):
        text = tuple(rng.randrange(3, len(tokenizer)) for _ in range(rng.randrange(2, 40)))
        prompt, start = text, 0
        while len(text) < len(prompt) + TOKENS and (start == 0 or text[-1] not in tokenizer.eos_token_ids):
            seq = SequenceSlice(f"s{number}", start, len(text) - start, text[start:], 0, "greedy")
            at = time.perf_counter()
            ((result,), _) = engine.execute(ForwardWork(Span(0, 3, True, True), (seq,), ("last",)))
            began += time.perf_counter() - at
            assert result.verdict
            start, text, tokens = len(text), (*text, result.verdict.next_token), tokens + 1
            assert text[-1] == brain(text[:-1]), (number, text)
    print(f"{PROMPTS} prompts, {tokens} tokens equal, {1e3 * began / tokens:.2f} ms a token, {span} a call")


@pytest.mark.parametrize("name", ["cloud_centric", "hybrid"])
def test_policies_over_llama_cpp_write_the_text_of_torch(
    url: str, pair: tuple[Path, Path], tokenizer: Tokenizer, name: str
) -> None:
    found, override = ("sled", HYBRID) if name == "hybrid" else (name, {})
    here, there = (served(setup_of(found, pair, at, **override), tokenizer, n=3) for at in (None, url))
    assert {s: (r.tokens, r.origins) for s, r in there.items()} == {s: (r.tokens, r.origins) for s, r in here.items()}
    assert len(queries(tokenizer)) == len(there)


def test_llama_cpp_is_refused_for_policies_that_verify(url: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"llama.cpp ignores echo"):
        connect_remote(server(url), tokenizer, len(tokenizer), True)
