"""What a batch-invariant model computes for a token is the same, bit for bit, whatever is computed with it."""

import copy
from typing import Any

import pytest
import torch

from serving.engines.torch.model import DecomposedModel, decompose
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache

LENGTHS = (5, 23, 41)
VARIANTS = ("llama", "qwen3", "mistral", "phi3", "neox")
DTYPES = (torch.bfloat16, torch.float32)


def sessions() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (length,), generator=generator).tolist() for length in LENGTHS]


@torch.inference_mode()
def logits_of(model: DecomposedModel, passes: list[list[tuple[int, int, int]]]) -> list[torch.Tensor]:
    """The logits of every token of each session, where a pass packs (session, first, end) token ranges."""
    runner, depth = ModelRunner(model, model.vocab_size), len(model.layers)
    caches = [SequenceCache(model, 0, depth) for _ in LENGTHS]
    found: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
    for ranges in passes:
        hidden = runner.embed([token for session, a, b in ranges for token in sessions()[session][a:b]])
        hidden = runner.run(hidden, [RunnerInput(caches[session], b - a) for session, a, b in ranges], 0, depth)
        for (session, _, _), rows in zip(
            ranges, runner.logits(hidden).split([b - a for _, a, b in ranges]), strict=True
        ):
            found[session].append(rows)
    return [torch.cat(parts) for parts in found]


def one_by_one() -> list[list[tuple[int, int, int]]]:
    return [[(session, at, at + 1)] for session, length in enumerate(LENGTHS) for at in range(length)]


def packed() -> list[list[tuple[int, int, int]]]:
    """All sessions in each pass, in parts of 5 and of 9 tokens by turns."""
    found, at, turn = [], [0] * len(LENGTHS), 0
    while any(begin < length for begin, length in zip(at, LENGTHS, strict=True)):
        ends = [min(begin + (5, 9)[turn % 2], length) for begin, length in zip(at, LENGTHS, strict=True)]
        found.append([(session, a, b) for session, (a, b) in enumerate(zip(at, ends, strict=True)) if a < b])
        at, turn = ends, turn + 1
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp32"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_parts_have_the_bits_of_single_tokens(causal: Any, variant: str, dtype: torch.dtype) -> None:
    model = decompose(causal(variant).to(dtype), batch_invariant=True)
    for alone, together in zip(logits_of(model, one_by_one()), logits_of(model, packed()), strict=True):
        assert torch.equal(alone, together)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp32"])
def test_without_it_they_have_not(causal: Any, dtype: torch.dtype) -> None:
    model = decompose(causal("llama").to(dtype))
    pairs = zip(logits_of(model, one_by_one()), logits_of(model, packed()), strict=True)
    assert not all(torch.equal(alone, together) for alone, together in pairs)


def test_it_computes_the_models_logits(causal: Any) -> None:
    whole = causal("llama")
    model = decompose(copy.deepcopy(whole), batch_invariant=True)
    for session, logits in zip(sessions(), logits_of(model, packed()), strict=True):
        with torch.inference_mode():
            want = whole(torch.tensor([session])).logits[0]
        assert (logits - want).abs().max() < 1e-4


@torch.inference_mode()
def test_a_path_of_a_tree_has_the_bits_of_a_chain(causal: Any) -> None:
    model = decompose(causal("llama").to(torch.bfloat16), batch_invariant=True)
    runner, depth = ModelRunner(model, model.vocab_size), len(model.layers)
    prompt, (first, other, second, third) = sessions()[0], (11, 12, 13, 14)

    def after_prompt() -> SequenceCache:
        cache = SequenceCache(model, 0, depth)
        runner.run(runner.embed(prompt), [RunnerInput(cache, len(prompt))], 0, depth)
        return cache

    tree = RunnerInput(after_prompt(), 4, parents=(-1, -1, 0, 2))  # `other` is a sibling of `first`
    branched = runner.run(runner.embed([first, other, second, third]), [tree], 0, depth)
    chain = runner.run(runner.embed([first, second, third]), [RunnerInput(after_prompt(), 3)], 0, depth)
    assert torch.equal(branched[[0, 2, 3]], chain)
