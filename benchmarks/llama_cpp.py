"""The engine on llama.cpp beside the torch engine, `transformers` and llama.cpp alone: tokens/s of one stream, of eight
and of a prefill.

The same weights in fp32, one process, one thread, one engine after the other in every round, so that a machine that is
busy for a while slows all sides of a ratio.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.engine import chat_tokens
from benchmarks.onnx import measure_in_turn
from serving.engines.llama_cpp.context import LlamaModel
from serving.engines.llama_cpp.engine import LlamaCppEngine
from serving.engines.llama_cpp.gguf import convert
from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import load_model
from serving.engines.torch.packed_layers import pack_weights
from serving.messages import ForwardWork, SequenceSlice, Span
from serving.workload.datasets.tiny import TinyTasks

PROMPTS, TOKENS, STREAMS, PREFILL = 8, 32, 8, 512
MIN_OF_LLAMA_CPP = 0.4
"""Of llama.cpp's own tokens/s that the engine on it has to reach with eight streams."""
Prompt: TypeAlias = tuple[int, ...]


class EngineStreams:
    """Greedy streams of one of this project's engines, in one batch a step."""

    def __init__(self, engine: Any, layers: int) -> None:
        self._engine, self._span = engine, Span(0, layers, embedding=True, lm_head=True)

    def begin(self, prompts: Sequence[Prompt]) -> list[int]:
        return self._step([(0, prompt) for prompt in prompts])

    def step(self, positions: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return self._step([(at, (token,)) for at, token in zip(positions, tokens, strict=True)])

    def _step(self, new: Sequence[tuple[int, Prompt]]) -> list[int]:
        slices = tuple(
            SequenceSlice(str(i), start, len(part), part, 0, "greedy") for i, (start, part) in enumerate(new)
        )
        outcomes, _ = self._engine.execute(ForwardWork(self._span, slices, ("last",) * len(slices)))
        return [outcome.verdict.next_token for outcome in outcomes]

    def end(self, count: int) -> None:
        for i in range(count):
            self._engine.drop(str(i), 0)


class LibraryStreams:
    """Greedy streams of llama.cpp itself, with its own sampler: no scores leave the library."""

    def __init__(self, model: LlamaModel) -> None:
        from cyllama.llama import llama_cpp

        self._context, self._batch = model.open_context(4096, 1), model.new_batch()
        self._sampler = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
        self._sampler.add_greedy()

    def begin(self, prompts: Sequence[Prompt]) -> list[int]:
        return [self._run([(i, 0, prompt)])[0] for i, prompt in enumerate(prompts)]

    def step(self, positions: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return self._run([(i, at, (token,)) for i, (at, token) in enumerate(zip(positions, tokens, strict=True))])

    def _run(self, new: Sequence[tuple[int, int, Prompt]]) -> list[int]:
        self._batch.reset()
        for number, start, tokens in new:
            for place, token in enumerate(tokens):
                self._batch.add(token, start + place, [number], place == len(tokens) - 1)
        self._context.decode(self._batch)
        ends = accumulate(len(tokens) for _, _, tokens in new)
        return [int(self._sampler.sample(self._context, end - 1)) for end in ends]

    def end(self, count: int) -> None:
        for i in range(count):
            self._context.memory_seq_rm(i, -1, -1)


class TransformersStreams:
    """Greedy streams of `transformers`, padded to one length: what `generate` computes, without its bookkeeping."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
        self._cache: Any = None
        self._mask = torch.empty(0)

    @torch.inference_mode()
    def begin(self, prompts: Sequence[Prompt]) -> list[int]:
        longest = max(map(len, prompts))
        tokens = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        self._mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        positions = (self._mask.cumsum(1) - 1).clamp_min(0)
        found = self._model(tokens, attention_mask=self._mask, position_ids=positions, logits_to_keep=1)
        self._cache = found.past_key_values
        return self._chosen(found)

    @torch.inference_mode()
    def step(self, positions: Sequence[int], tokens: Sequence[int]) -> list[int]:
        self._mask = torch.cat([self._mask, torch.ones(len(tokens), 1, dtype=torch.long)], 1)
        found = self._model(
            torch.tensor(tokens)[:, None],
            attention_mask=self._mask,
            position_ids=torch.tensor(positions)[:, None],
            past_key_values=self._cache,
        )
        return self._chosen(found)

    def _chosen(self, found: Any) -> list[int]:
        tokens: list[int] = found.logits[:, -1].argmax(-1).tolist()
        return tokens

    def end(self, count: int) -> None:  # noqa: ARG002
        self._cache = None


def write(streams: Any, prompts: Sequence[Prompt]) -> tuple[list[list[int]], float]:
    """What the streams write, and seconds a step."""
    tokens = streams.begin(prompts)
    texts = [[token] for token in tokens]
    began = time.perf_counter()
    for step in range(TOKENS - 1):
        tokens = streams.step([len(prompt) + step for prompt in prompts], tokens)
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
    spent_s = time.perf_counter() - began
    streams.end(len(prompts))
    return texts, spent_s / (TOKENS - 1)


def tokens_per_s(streams: Any, prompts: Sequence[Prompt]) -> float:
    return len(prompts) / write(streams, prompts)[1]


def prefill_per_s(streams: Any, prompts: Sequence[Prompt]) -> float:
    long = tuple(token for prompt in prompts for token in prompt)
    long = (long * (PREFILL // len(long) + 1))[:PREFILL]
    began = time.perf_counter()
    streams.begin([long])
    spent_s = time.perf_counter() - began
    streams.end(1)
    return PREFILL / spent_s


def measured(found: dict[str, Any], what: str, measure: Callable[[Any], float]) -> dict[str, float]:
    """The median of each, printed with its spread."""
    values = measure_in_turn(found, measure)
    for name, each in values.items():
        spread = f"{min(each):.1f} to {max(each):.1f}"
        print(f"llama.cpp: {what}, {name:22} {statistics.median(each):8.1f} tokens/s ({spread})")
    return {name: statistics.median(each) for name, each in values.items()}


def main(checkpoint: Path, corpus: Path) -> bool:
    torch.set_num_threads(1)
    tokenizer = Tokenizer(checkpoint)
    prompts = [tuple(chat_tokens(tokenizer, item.text)) for item in TinyTasks(corpus=corpus).prompts()[:PROMPTS]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        convert(checkpoint, file)
        model = LlamaModel(file)
        own = load_model(checkpoint)
        pack_weights(own)  # as models that serve
        found = {
            "torch engine": EngineStreams(TorchEngine(own), len(own.layers)),
            "engine on llama.cpp": EngineStreams(LlamaCppEngine(model), model.layers),
            "llama.cpp alone": LibraryStreams(model),
            "transformers": TransformersStreams(checkpoint),
        }
        texts = {name: write(streams, prompts)[0] for name, streams in found.items()}
        for name, other in texts.items():
            alike = sum(map(list.__eq__, texts["torch engine"], other))
            print(f"llama.cpp: {alike} of {PROMPTS} texts of {name} are those of the torch engine")
        measured(found, "1 stream", lambda streams: tokens_per_s(streams, prompts[:1]))
        eight = measured(found, f"{STREAMS} streams", lambda streams: tokens_per_s(streams, prompts[:STREAMS]))
        measured(found, f"prefill of {PREFILL}", lambda streams: prefill_per_s(streams, prompts))
    share = eight["engine on llama.cpp"] / eight["llama.cpp alone"]
    print(
        f"llama.cpp: its engine has {share:.2f} of the library's own speed with {STREAMS} streams ({MIN_OF_LLAMA_CPP})"
    )
    return share >= MIN_OF_LLAMA_CPP


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]), Path(sys.argv[2])) else 1)
