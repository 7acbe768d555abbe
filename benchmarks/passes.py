"""Milliseconds of processor time of single passes of a model: the engine beside its own matrix products and beside
`transformers`, in turn, on one thread; for the embedded large model also beside llama.cpp, where its extra is
installed.

The models are the embedded pair, and SmolLM2's shape with random weights. The products are those of the engine's
weights, each layer's own, without anything between them. Passes of few rows, as a draft model and one stream have,
are those of an engine that serves one session; the others those of one that verifies drafts. llama.cpp has the
same weights in fp32, and no limit.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from serving.engines.models import Dtype
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DTYPES, DecomposedModel, load_causal_lm, load_model
from serving.engines.torch.packed_layers import FEW_ROWS, PackedWeight, pack_weights, packs
from serving.hardware.architecture import Architecture
from serving.messages import ForwardWork, SequenceSlice, Span
from tests.support.conf_files import architecture
from training.latency.published import random_model, transformers_config
from training.latency.timing import Accelerator

CACHED_TOKENS = 256
MAX_TOKENS = 2048
ROUNDS = 7
EMBEDDED_ROUNDS = 31
"""A pass of the embedded pair takes milliseconds: more of them stand the same disturbance."""
ROWS = (1, 2, 5, 9, 16, 64)
PREFILL_ROWS = 1000
EMBEDDED_PREFILL_ROWS = 400
"""The pair's context ends at 512 tokens."""
_TOKENS = 500
"""Fewer than each vocabulary has."""
MAX_TRANSFORMERS_RATIO = 1.05
PRODUCTS_RATIO_AIM = 1.6
"""The engine's time over that of its products, printed and not asserted; at one row attention and norms are the larger
part of what is left.
"""


@dataclass(frozen=True)
class Subject:
    """A model, once as the engine holds it and once as `transformers` does."""

    name: str
    dtype: Dtype
    make_decomposed: Callable[[], DecomposedModel]
    make_causal: Callable[[], Any]
    rounds: int = ROUNDS
    prefill_rows: int = PREFILL_ROWS
    packed: bool = True
    """Whether its MLP's weights are large enough to be packed, where this machine packs."""
    llama_cpp_checkpoint: Path | None = None
    """The same model, if llama.cpp runs it too."""


def published(shape: Architecture, dtype: Dtype) -> Subject:
    """A published shape, with random weights."""
    return Subject(
        shape.name,
        dtype,
        lambda: random_model(shape, dtype, MAX_TOKENS, Accelerator("cpu")),
        lambda: _random_causal(shape, dtype),
    )


def _random_causal(shape: Architecture, dtype: Dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(transformers_config(shape, MAX_TOKENS), dtype=DTYPES[dtype])


def embedded(name: str, checkpoint: Path, on_llama_cpp: bool = False) -> Subject:
    """A trained model of the embedded pair: no weight of its layers is large enough to be packed."""
    return Subject(
        name,
        "fp32",
        lambda: load_model(checkpoint),
        lambda: load_causal_lm(checkpoint),
        EMBEDDED_ROUNDS,
        EMBEDDED_PREFILL_ROWS,
        packed=False,
        llama_cpp_checkpoint=checkpoint if on_llama_cpp else None,
    )


def _tokens(count: int) -> list[int]:
    return [5 + i % (_TOKENS - 5) for i in range(count)]


class EnginePasses:
    """Passes of the engine behind a cached prompt."""

    def __init__(self, subject: Subject, rows: int | None = None) -> None:
        self.model = subject.make_decomposed()
        pack_weights(self.model, rows)
        self.engine = TorchEngine(self.model)
        self.span = Span(0, len(self.model.layers), True, True)
        self.dtype = DTYPES[subject.dtype]

    def run(self, rows: int, cached: int) -> None:
        """A pass of `rows` new tokens, all verified but the first; the cache is as before afterwards."""
        new = tuple(_tokens(rows))
        piece = SequenceSlice("a", cached, rows, new, rows - 1 if rows <= ROWS[-1] else 0, "greedy")
        self.engine.execute(ForwardWork(self.span, (piece,), ("last",)))
        self.engine.drop("a", cached)

    def prepare(self, cached: int) -> None:
        self.engine.drop("a", 0)
        piece = SequenceSlice("a", 0, cached, tuple(_tokens(cached)), 0, "greedy")
        self.engine.execute(ForwardWork(self.span, (piece,), ("last",)))

    def products(self, rows: int, head_rows: int) -> None:
        """The products alone: of all layers, and of the head for the rows whose logits are read."""
        for layer in self.model.layers:
            for weight, width in self._weights(layer):
                weight.product(torch.ones(1, rows, width, dtype=self.dtype))
        self.model.lm_head(torch.ones(1, head_rows, self.model.lm_head.in_features, dtype=self.dtype))

    def _weights(self, layer: Any) -> Iterator[tuple[Any, int]]:
        attention = layer.self_attn
        hidden, heads = attention.config.hidden_size, attention.config.num_attention_heads * attention.head_dim
        widths = {"qkv": hidden, "o": heads, "gate": hidden, "up": hidden, "down": attention.config.intermediate_size}
        yield from ((layer.products[name], width) for name, width in widths.items())


class TransformersPasses:
    """The same passes of the `transformers` model with its own cache."""

    def __init__(self, subject: Subject) -> None:
        self.model: Any = subject.make_causal().eval()
        self.cache: Any = None

    def prepare(self, cached: int) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        self._forward(cached)

    def run(self, rows: int) -> None:
        self._forward(rows)
        self.cache.crop(-rows)

    @torch.inference_mode()
    def _forward(self, rows: int) -> None:
        keep = 1 if rows > ROWS[-1] else rows
        self.model(torch.tensor([_tokens(rows)]), past_key_values=self.cache, logits_to_keep=keep)


class LlamaCppPasses:
    """The same passes of llama.cpp itself."""

    def __init__(self, checkpoint: Path) -> None:
        from serving.engines.llama_cpp.context import LlamaModel
        from serving.engines.llama_cpp.gguf import convert

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            convert(checkpoint, file)
            model = LlamaModel(file)
        self.context, self.batch, self.cached = model.open_context(MAX_TOKENS, 1, 1), model.new_batch(), 0

    def prepare(self, cached: int) -> None:
        self.context.memory_seq_rm(0, 0, -1)
        self._forward(0, cached)
        self.cached = cached

    def run(self, rows: int) -> None:
        self._forward(self.cached, rows)
        self.context.memory_seq_rm(0, self.cached, -1)

    def _forward(self, start: int, rows: int) -> None:
        self.batch.reset()
        for at, token in enumerate(_tokens(rows)):
            self.batch.add(token, start + at, [0], rows <= ROWS[-1] or at == rows - 1)
        self.context.decode(self.batch)


def measure(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of processor time of each call, in turn, after one round that is not counted: on a busy machine wall
    time is that of other processes.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            began_s = time.process_time()
            call()
            if round_:
                found[name].append(1000 * (time.process_time() - began_s))
    return found


def compare(subject: Subject) -> bool:
    """Prints a line for each number of rows; True if the engine is nowhere slower than `transformers`."""
    many, theirs = EnginePasses(subject), TransformersPasses(subject)
    checkpoint = subject.llama_cpp_checkpoint
    llama_cpp = LlamaCppPasses(checkpoint) if checkpoint and find_spec("cyllama") else None
    is_packed = isinstance(many.model.layers[0].products["gate"], PackedWeight)
    assert is_packed == (subject.packed and packs(DTYPES[subject.dtype])), "the engine does not run as it serves"
    few = EnginePasses(subject, FEW_ROWS)
    passed = True
    for rows in (*ROWS, subject.prefill_rows):
        ours = few if rows <= FEW_ROWS else many
        cached, rounds = (CACHED_TOKENS, subject.rounds) if rows != subject.prefill_rows else (1, 3)
        ours.prepare(cached)
        theirs.prepare(cached)
        calls: dict[str, Callable[[], None]] = {
            "engine": partial(ours.run, rows, cached),
            "products": partial(ours.products, rows, rows if rows <= ROWS[-1] else 1),
            "transformers": partial(theirs.run, rows),
        }
        if llama_cpp:
            llama_cpp.prepare(cached)
            calls["llama.cpp"] = partial(llama_cpp.run, rows)
        with torch.inference_mode():
            found = measure(calls, rounds)
        passed &= _print_line(subject, rows, found)
    return passed


def _print_line(subject: Subject, rows: int, found: dict[str, list[float]]) -> bool:
    middle = {call: statistics.median(times) for call, times in found.items()}
    beside = statistics.median(
        ours / theirs for ours, theirs in zip(found["engine"], found["transformers"], strict=True)
    )
    over = sorted(ours / own for ours, own in zip(found["engine"], found["products"], strict=True))
    beside_llama_cpp = f", llama.cpp {middle['llama.cpp']:.2f}" if "llama.cpp" in middle else ""
    print(
        f"{subject.name} {subject.dtype} {rows:4} rows: engine {middle['engine']:.2f} ms ({_range(found['engine'])}), "
        f"its products {middle['products']:.2f}, transformers {middle['transformers']:.2f}"
        f"{beside_llama_cpp}; over products "
        f"{statistics.median(over):.2f} ({_range(over)}; aim {PRODUCTS_RATIO_AIM}), over transformers {beside:.2f} "
        f"(at most {MAX_TRANSFORMERS_RATIO})"
    )
    return beside <= MAX_TRANSFORMERS_RATIO


def _range(values: list[float]) -> str:
    """The quartiles: one disturbed pass says nothing."""
    first, _, third = statistics.quantiles(values, n=4)
    return f"{first:.2f} to {third:.2f}"


def main(large: Path, small: Path) -> bool:
    """On the embedded pair's checkpoints, and on SmolLM2's shape."""
    torch.set_num_threads(1)
    shape = architecture("smollm2_135m")
    dtypes: tuple[Dtype, ...] = ("fp32", "bf16") if packs(torch.bfloat16) else ("fp32",)
    subjects = [
        embedded("embedded large", large, on_llama_cpp=True),
        embedded("embedded small", small),
    ]
    subjects += [published(shape, dtype) for dtype in dtypes]
    passed = [compare(subject) for subject in subjects]
    return all(passed)


if __name__ == "__main__":
    raise SystemExit(not main(*map(Path, sys.argv[1:3])))
