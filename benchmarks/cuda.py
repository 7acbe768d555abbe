"""The engine on a GPU, in one run: passes and streams as CUDA graphs, kernel by kernel, and in `transformers`.

The models have published shapes and random weights. The products are those of the model's linear layers, captured as
one graph without anything between them.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from serving.engines.models import Dtype
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DTYPES, DecomposedModel, decompose
from serving.engines.torch.packed_layers import pack_weights
from serving.messages import ForwardWork, SequenceSlice, Span
from tests.support.conf_files import architecture
from training.latency.published import transformers_config

DEVICE = "cuda"
MAX_TOKENS = 2048
CACHED_TOKENS = 256
ROWS = (1, 5, 8, 16)
PREFILL_ROWS = (128, 1000)
BATCHES = (((60, 1), (17, 1), (360, 1)), ((256, 5), (256, 5), (256, 5), (0, 100)), ((1500, 20),) * 4)
"""Cached and new tokens of each session: uneven decodes, verifications beside a chunk of a prompt, long sessions."""
ROUNDS = 12
STREAMS = (1, 8)
_TOKENS = 500
"""Fewer than each vocabulary has."""


Batch: TypeAlias = Sequence[tuple[int, int]]


def random_causal(name: str, dtype: Dtype) -> Any:
    """A `transformers` model; the same weights at each call."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = transformers_config(architecture(name), MAX_TOKENS)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, _TOKENS, (count,), generator=generator).tolist())


class EngineRun:
    """Passes and streams of one engine."""

    def __init__(self, model: DecomposedModel, cuda_graphs: bool) -> None:
        self._engine = TorchEngine(model, cuda_graphs=cuda_graphs)
        self._span = Span(0, len(model.layers), True, True)

    def verify(self, rows: int, cached: int) -> None:
        """A pass of `rows` new tokens, all verified but the first, or of a prompt; the cache is as before."""
        piece = SequenceSlice("a", cached, rows, tokens(rows), rows - 1 if rows <= ROWS[-1] else 0, "greedy")
        self._run([piece])

    def cache_batch(self, batch: Batch) -> None:
        """Fills the sessions' caches, one after the other."""
        for place, (cached, _) in enumerate(batch):
            if cached:
                self._run([SequenceSlice(f"batch {place}", 0, cached, tokens(cached), 0, "greedy")])

    def run_batch(self, batch: Batch) -> None:
        """A pass of all sessions, of which each verifies up to 32 drafts; the caches are as before."""
        pieces = [
            SequenceSlice(f"batch {place}", cached, rows, tokens(rows), rows - 1 if rows <= 32 else 0, "greedy")
            for place, (cached, rows) in enumerate(batch)
        ]
        self._run(pieces)

    def drop_batch(self, batch: Batch) -> None:
        for place in range(len(batch)):
            self._engine.drop(f"batch {place}", 0)

    def cache(self, count: int) -> None:
        self._engine.drop("a", 0)
        if count:
            self._run([SequenceSlice("a", 0, count, tokens(count), 0, "greedy")])

    def decode(self, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> list[list[int]]:
        """All at once, a token of each in a pass."""
        texts, cached = [list(prompt) for prompt in prompts], [0] * len(prompts)
        for _ in range(num_tokens):
            pieces = [
                SequenceSlice(str(i), start, len(text) - start, tuple(text[start:]), 0, "greedy")
                for i, (text, start) in enumerate(zip(texts, cached, strict=True))
            ]
            for i, token in enumerate(self._run(pieces)):
                cached[i] = len(texts[i])
                texts[i].append(token)
        for i in range(len(prompts)):
            self._engine.drop(str(i), 0)
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    def _run(self, pieces: Sequence[SequenceSlice]) -> list[int]:
        results: Any = self._engine.execute(ForwardWork(self._span, tuple(pieces), ("",) * len(pieces)))[0]
        return [result.verdict.next_token for result in results]


class TransformersRun:
    """The same, as `transformers` does it."""

    def __init__(self, causal: Any) -> None:
        self._model, self._cache = causal, None  # type: Any, Any

    def cache(self, count: int) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        if count:
            self._forward(count)

    def verify(self, rows: int, _cached: int) -> None:
        self._forward(rows)
        self._cache.crop(-rows)

    @torch.inference_mode()
    def _forward(self, rows: int) -> None:
        ids = torch.tensor([tokens(rows)], device=DEVICE)
        keep = rows if rows <= ROWS[-1] else 1
        self._model(ids, past_key_values=self._cache, logits_to_keep=keep).logits.argmax(-1).tolist()

    def decode(self, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=DEVICE)
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, min_new_tokens=num_tokens,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        return [row[ids.shape[1] :].tolist() for row in out]


class Products:
    """The linear layers of a model and its head, on rows of ones, as one graph."""

    def __init__(self, causal: Any, rows: int, dtype: torch.dtype) -> None:
        linears = [module for module in causal.modules() if isinstance(module, torch.nn.Linear)]
        ones = {layer.in_features: torch.ones(rows, layer.in_features, dtype=dtype, device=DEVICE) for layer in linears}
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode():
            for layer in linears:
                layer(ones[layer.in_features])
            torch.cuda.synchronize()
            with torch.cuda.graph(self._graph):
                for layer in linears:
                    layer(ones[layer.in_features])

    def run(self) -> None:
        self._graph.replay()


@dataclass(frozen=True)
class Subject:
    """One model, as the engine runs it and as `transformers` does."""

    name: str
    dtype: Dtype
    tokens: int

    def compare(self) -> bool:
        """Prints passes and streams; True if the engine is nowhere slower than `transformers`."""
        causal = random_causal(self.name, self.dtype)
        model = decompose(random_causal(self.name, self.dtype), device=DEVICE, name=self.name)
        pack_weights(model)  # as models that serve
        runs: dict[str, Any] = {
            "graphs": EngineRun(model, True),
            "kernels": EngineRun(model, False),
            "transformers": TransformersRun(causal),
        }
        passed = [self._passes(runs, causal, rows) for rows in (*ROWS, *PREFILL_ROWS)]
        passed += [self._batch(runs["graphs"], runs["kernels"], batch) for batch in BATCHES]
        return all([*passed, *[self._streams(runs, count) for count in STREAMS]])

    def _passes(self, runs: dict[str, Any], causal: Any, rows: int) -> bool:
        cached = CACHED_TOKENS if rows not in PREFILL_ROWS else 0
        for run in runs.values():
            run.cache(cached)
        calls = {name: (lambda run=run: run.verify(rows, cached)) for name, run in runs.items()}
        if rows not in PREFILL_ROWS:
            calls["products"] = Products(causal, rows, DTYPES[self.dtype]).run
        found = measure(calls, ROUNDS)
        middle = {name: statistics.median(times) for name, times in found.items()}
        shown = ", ".join(f"{name} {middle[name]:.2f} ms ({spread(times)})" for name, times in found.items())
        print(f"{self.name} {self.dtype}, {rows:4} rows behind {cached}: {shown}", flush=True)
        return middle["graphs"] <= middle["transformers"]

    def _batch(self, graphs: EngineRun, kernels: EngineRun, batch: Batch) -> bool:
        """True if a pass of several sessions is no slower as a graph."""
        for run in (graphs, kernels):
            run.cache_batch(batch)
        found = measure(
            {"graphs": lambda: graphs.run_batch(batch), "kernels": lambda: kernels.run_batch(batch)}, ROUNDS
        )
        for run in (graphs, kernels):
            run.drop_batch(batch)
        middle = {name: statistics.median(times) for name, times in found.items()}
        shown = ", ".join(f"{name} {middle[name]:.2f} ms ({spread(times)})" for name, times in found.items())
        sizes = ", ".join(f"{rows} behind {cached}" for cached, rows in batch)
        print(f"{self.name} {self.dtype}, {sizes}: {shown}", flush=True)
        return middle["graphs"] <= middle["kernels"]

    def _streams(self, runs: dict[str, Any], count: int) -> bool:
        prompts = [tokens(64, seed) for seed in range(count)]
        written: dict[str, list[list[int]]] = {}

        def write(name: str) -> None:
            written[name] = runs[name].decode(prompts, self.tokens)

        found = measure({name: (lambda name=name: write(name)) for name in runs}, 3)
        rates = {name: count * self.tokens * 1000 / statistics.median(times) for name, times in found.items()}
        equal = sum(ours == theirs for ours, theirs in zip(written["graphs"], written["kernels"], strict=True))
        as_theirs = sum(ours == theirs for ours, theirs in zip(written["graphs"], written["transformers"], strict=True))
        shown = ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in rates.items())
        print(
            f"{self.name} {self.dtype}, {count} streams of {self.tokens} tokens: {shown}; texts equal to those of "
            f"kernels {equal} of {count}, of transformers {as_theirs}",
            flush=True,
        )
        return rates["graphs"] >= rates["transformers"]


def measure(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call until the GPU is done, in turn, after three rounds that are not counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 3):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if round_ >= 3:
                found[name].append(1000 * (time.perf_counter() - began_s))
    return found


def spread(values: list[float]) -> str:
    first, _, third = statistics.quantiles(values, n=4)
    return f"{first:.2f} to {third:.2f}"


def named(model: str) -> tuple[str, Dtype]:
    """Raises ValueError, which argparse says, for anything but NAME:DTYPE."""
    name, _, dtype = model.partition(":")
    if dtype not in DTYPES:
        raise ValueError(dtype)
    return name, cast("Dtype", dtype)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=named, default=[("smollm2_135m", "bf16")], help="NAME:DTYPE of conf/")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here; nothing was measured")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    subjects = [Subject(name, dtype, args.tokens) for name, dtype in args.models]
    passed = [subject.compare() for subject in subjects]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
