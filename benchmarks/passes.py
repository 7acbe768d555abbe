"""Milliseconds of single passes of a published shape, with random weights: the engine beside its own matrix products
and beside `transformers`, in turn, on one thread.

The products are those of the engine's packed weights, each layer's own, without anything between them.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from serving.engines.models import Dtype
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DTYPES
from serving.engines.torch.packed_layers import PackedWeight, pack_weights, packs
from serving.hardware.architecture import Architecture
from serving.messages import ForwardWork, SequenceSlice, Span
from tests.support.conf_files import architecture
from training.latency.published import random_model, transformers_config
from training.latency.timing import Accelerator

CACHED_TOKENS = 256
MAX_TOKENS = 2048
ROUNDS = 7
ROWS = (1, 2, 5, 9, 16, 64)
PREFILL_ROWS = 1000
MAX_TRANSFORMERS_RATIO = 1.05
MAX_PRODUCTS_RATIO = 1.6
"""The engine's time over that of its products; at one row attention and norms are the larger part of what is left."""


class EnginePasses:
    """Passes of the engine behind a cached prompt."""

    def __init__(self, shape: Architecture, dtype: Dtype) -> None:
        self.model = random_model(shape, dtype, MAX_TOKENS, Accelerator("cpu"))
        pack_weights(self.model)
        self.engine = TorchEngine(self.model)
        self.span = Span(0, len(self.model.layers), True, True)
        self.dtype = DTYPES[dtype]

    def run(self, rows: int, cached: int) -> None:
        """A pass of `rows` new tokens, all verified but the first; the cache is as before afterwards."""
        new = tuple(range(5, 5 + rows))
        piece = SequenceSlice("a", cached, rows, new, rows - 1 if rows <= ROWS[-1] else 0, "greedy")
        self.engine.execute(ForwardWork(self.span, (piece,), ("last",)))
        self.engine.drop("a", cached)

    def prepare(self, cached: int) -> None:
        self.engine.drop("a", 0)
        piece = SequenceSlice("a", 0, cached, tuple(range(5, 5 + cached)), 0, "greedy")
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

    def __init__(self, shape: Architecture, dtype: Dtype) -> None:
        from transformers import AutoModelForCausalLM

        config = transformers_config(shape, MAX_TOKENS)
        self.model: Any = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
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
        self.model(torch.arange(5, 5 + rows)[None], past_key_values=self.cache, logits_to_keep=keep)


def measure(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, in turn, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            began_s = time.perf_counter()
            call()
            if round_:
                found[name].append(1000 * (time.perf_counter() - began_s))
    return found


def compare(shape: Architecture, dtype: Dtype) -> bool:
    """Prints a line for each number of rows; True if the engine is nowhere slower than `transformers`."""
    ours, theirs = EnginePasses(shape, dtype), TransformersPasses(shape, dtype)
    assert not packs(DTYPES[dtype]) or isinstance(ours.model.layers[0].products["gate"], PackedWeight)
    passed = True
    for rows in (*ROWS, PREFILL_ROWS):
        cached, rounds = (CACHED_TOKENS, ROUNDS) if rows != PREFILL_ROWS else (1, 3)
        ours.prepare(cached)
        theirs.prepare(cached)
        calls: dict[str, Callable[[], None]] = {
            "engine": lambda rows=rows, cached=cached: ours.run(rows, cached),  # type: ignore[misc]
            "products": lambda rows=rows: ours.products(rows, rows if rows != PREFILL_ROWS else 1),  # type: ignore[misc]
            "transformers": lambda rows=rows: theirs.run(rows),  # type: ignore[misc]
        }
        with torch.inference_mode():
            found = measure(calls, rounds)
        passed &= _print_line(shape.name, dtype, rows, found)
    return passed


def _print_line(name: str, dtype: Dtype, rows: int, found: dict[str, list[float]]) -> bool:
    middle = {call: statistics.median(times) for call, times in found.items()}
    beside = statistics.median(
        ours / theirs for ours, theirs in zip(found["engine"], found["transformers"], strict=True)
    )
    over = statistics.median(ours / own for ours, own in zip(found["engine"], found["products"], strict=True))
    spread = f"{min(found['engine']):.1f} to {max(found['engine']):.1f}"
    print(
        f"{name} {dtype} {rows:4} rows: engine {middle['engine']:.1f} ms ({spread}), its products "
        f"{middle['products']:.1f}, transformers {middle['transformers']:.1f}; over products {over:.2f} (aim "
        f"{MAX_PRODUCTS_RATIO}), over transformers {beside:.2f} (at most {MAX_TRANSFORMERS_RATIO})"
    )
    return beside <= MAX_TRANSFORMERS_RATIO


def main() -> bool:
    torch.set_num_threads(1)
    shape = architecture("smollm2_135m")
    dtypes: tuple[Dtype, ...] = ("fp32", "bf16") if packs(torch.bfloat16) else ("fp32",)
    passed = [compare(shape, dtype) for dtype in dtypes]
    return all(passed)


if __name__ == "__main__":
    raise SystemExit(not main())
