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
MAX_VERIFIED = 32
"""New tokens of a session that the head reads, one by one; of more it reads the last."""
ROWS = (1, 5, 8, 16)
PROMPT_ROWS = (128, 1000)
BATCHES = (((60, 1), (17, 1), (360, 1)), ((256, 5), (256, 5), (256, 5), (0, 100)), ((1500, 20),) * 4)
"""Uneven decodes, verifications beside a chunk of a prompt, long sessions."""
ROUNDS = 12
STREAMS = (1, 8)
_TOKENS = 500
"""Fewer than each vocabulary has."""


Batch: TypeAlias = Sequence[tuple[int, int]]
"""Cached and new tokens of each session."""


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

    def cache(self, batch: Batch) -> None:
        """Fills the sessions' caches, one after the other."""
        for place, (cached, _) in enumerate(batch):
            self._engine.drop(str(place), 0)
            if cached:
                self._run([SequenceSlice(str(place), 0, cached, tokens(cached), 0, "greedy")])

    def verify(self, batch: Batch) -> None:
        """A pass of all sessions' new tokens, all verified but the first, or of prompts; the caches are as before."""
        pieces = [
            SequenceSlice(str(place), cached, rows, tokens(rows), rows - 1 if rows <= MAX_VERIFIED else 0, "greedy")
            for place, (cached, rows) in enumerate(batch)
        ]
        self._run(pieces)

    def drop(self, batch: Batch) -> None:
        for place in range(len(batch)):
            self._engine.drop(str(place), 0)

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
    """The same, as `transformers` does it; passes of one session."""

    def __init__(self, causal: Any) -> None:
        self._model, self._cache = causal, None  # type: Any, Any

    def cache(self, batch: Batch) -> None:
        from transformers import DynamicCache

        ((count, _),) = batch
        self._cache = DynamicCache(config=self._model.config)
        if count:
            self._forward(count)

    def verify(self, batch: Batch) -> None:
        ((_, rows),) = batch
        self._forward(rows)
        self._cache.crop(-rows)

    def drop(self, batch: Batch) -> None:  # noqa: ARG002
        self._cache = None

    @torch.inference_mode()
    def _forward(self, rows: int) -> None:
        ids = torch.tensor([tokens(rows)], device=DEVICE)
        keep = rows if rows <= MAX_VERIFIED else 1
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
        alone = [*(((CACHED_TOKENS, rows),) for rows in ROWS), *(((0, rows),) for rows in PROMPT_ROWS)]
        passed = [self._passes(runs, causal, batch) for batch in (*alone, *BATCHES)]
        return all([*passed, *[self._streams(runs, count) for count in STREAMS]])

    def _passes(self, runs: dict[str, Any], causal: Any, batch: Batch) -> bool:
        """True if a graph is no slower than `transformers`, or, of several sessions, than single kernels."""
        peer = "transformers" if len(batch) == 1 else "kernels"
        timed = {name: run for name, run in runs.items() if name in ("graphs", "kernels", peer)}
        for run in timed.values():
            run.cache(batch)
        calls = {name: (lambda run=run: run.verify(batch)) for name, run in timed.items()}
        if len(batch) == 1 and batch[0][1] <= MAX_VERIFIED:
            calls["products"] = Products(causal, batch[0][1], DTYPES[self.dtype]).run
        found = measure(calls, ROUNDS)
        for run in timed.values():
            run.drop(batch)
        middle = {name: statistics.median(times) for name, times in found.items()}
        shown = ", ".join(f"{name} {middle[name]:.2f} ms ({spread(times)})" for name, times in found.items())
        sizes = " and ".join(f"{rows} rows behind {cached}" for cached, rows in batch)
        print(f"{self.name} {self.dtype}, {sizes}: {shown}", flush=True)
        return middle["graphs"] <= middle[peer]

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
