"""The device's model on onnxruntime beside torch: milliseconds a token, prefill, bytes, and how often both agree.

One process, one thread, one engine after the other in every round, so that a machine that is busy for a while slows all
sides of a ratio. Each engine continues the same prompts of the embedded pair's own tasks, greedily.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.engine import chat_tokens
from serving.engines.models import Checkpoint
from serving.engines.onnx.engine import OnnxEngine
from serving.engines.onnx.export import export
from serving.engines.onnx.header import MODEL_FILE
from serving.engines.onnx.session import OnnxSession
from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import load_model
from serving.engines.torch.packed_layers import pack_weights
from serving.messages import DraftOutcome, DraftStopRule, DraftWork
from serving.workload.datasets.tiny import TinyTasks

PROMPTS, NUM_TIMED, ROUNDS = 240, 12, 15
TOKENS, LIMIT = 32, 48
PREFILL = 128
MIN_SPEEDUP = 1.0
"""How many times as fast per token as torch onnxruntime has to be."""
Prompt: TypeAlias = tuple[int, ...]
Engines: TypeAlias = dict[str, Any]


def generate(engine: Any, prompt: Prompt, limit: int, ends: tuple[int, ...] = ()) -> tuple[int, ...]:
    drafted, _ = engine.execute(DraftWork("s", 0, prompt, DraftStopRule(limit), ends))
    engine.drop("s", None)
    assert isinstance(drafted, DraftOutcome)
    return drafted.tokens


def token_ms(engine: Any, prompts: Sequence[Prompt]) -> float:
    """Milliseconds a token of continuing each prompt, its prefill not counted."""
    spent_s = 0.0
    for prompt in prompts:
        engine.execute(DraftWork("s", 0, prompt[:-1], DraftStopRule(0)))
        began = time.perf_counter()
        engine.execute(DraftWork("s", len(prompt) - 1, prompt[-1:], DraftStopRule(TOKENS)))
        spent_s += time.perf_counter() - began
        engine.drop("s", None)
    return 1e3 * spent_s / (TOKENS * len(prompts))


def prefill_ms(engine: Any, prompts: Sequence[Prompt]) -> float:
    """Milliseconds to the first token behind a prompt of so many tokens."""
    long = tuple(token for prompt in prompts for token in prompt)[:PREFILL]
    began = time.perf_counter()
    for _ in range(NUM_TIMED):
        generate(engine, long, 1)
    return 1e3 * (time.perf_counter() - began) / NUM_TIMED


def measure_in_turn(engines: Engines, measure: Callable[[Any], float]) -> dict[str, list[float]]:
    """What `measure` says of each engine, round by round, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(ROUNDS + 1):
        for name in sorted(engines, key=lambda name: (list(engines).index(name) + round_) % len(engines)):
            value = measure(engines[name])
            if round_:
                found[name].append(value)
    return found


def print_times(what: str, found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        print(f"onnx: {what}, {name:9} {statistics.median(values):.3f} ms ({min(values):.3f} to {max(values):.3f})")


def median_speedup(found: dict[str, list[float]], name: str) -> float:
    """Median over rounds of torch's time over this one's."""
    return statistics.median(a / b for a, b in zip(found["torch"], found[name], strict=True))


def agreement(engine: Any, texts: dict[Prompt, tuple[int, ...]], ends: tuple[int, ...]) -> str:
    """How many whole answers, and how many tokens up to the first that differs, are torch's."""
    own = {prompt: generate(engine, prompt, LIMIT, ends) for prompt in texts}
    whole = sum(own[prompt] == text for prompt, text in texts.items())
    same = sum(common_prefix_len(own[prompt], text) for prompt, text in texts.items())
    total = sum(map(len, texts.values()))
    return (
        f"{whole} of {len(texts)} greedy answers token for token, {same / total:.2%} of {total} tokens before a first "
        "difference"
    )


def common_prefix_len(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of their common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@torch.inference_mode()
def max_differences(small: Path, folder: Path, texts: dict[Prompt, tuple[int, ...]]) -> tuple[float, float]:
    """The largest of a logit and of a number of a hidden state, over all positions of all texts."""
    from transformers import AutoModelForCausalLM

    causal, session, logits, hidden = AutoModelForCausalLM.from_pretrained(small).eval(), OnnxSession(folder), 0.0, 0.0
    for prompt, text in texts.items():
        tokens = (*prompt, *text)
        want = causal(torch.tensor([tokens]), output_hidden_states=True)
        ran = session.run(tokens, range(len(tokens)), session.empty_cache())
        logits = max(logits, float((torch.from_numpy(ran.logits) - want.logits[0]).abs().max()))
        hidden = max(hidden, float((torch.from_numpy(ran.hidden_states) - want.hidden_states[-1][0]).abs().max()))
    return logits, hidden


def main(small: Path, corpus: Path) -> bool:
    torch.set_num_threads(1)
    tokenizer = Tokenizer(small)
    items = TinyTasks(corpus=corpus).prompts()
    asked = [tuple(chat_tokens(tokenizer, item.text)) for item in items[:: max(1, len(items) // PROMPTS)][:PROMPTS]]
    with tempfile.TemporaryDirectory() as work:
        folders = {name: Path(work) / name for name in ("onnx", "onnx int8")}
        for name, folder in folders.items():
            folder.mkdir()
            export(Checkpoint(path=small), folder, int8=name.endswith("int8"))
        return compare_engines(small, folders, asked, tokenizer.eos_token_ids)


def compare_engines(small: Path, folders: dict[str, Path], asked: list[Prompt], ends: tuple[int, ...]) -> bool:
    own = load_model(small)
    pack_weights(own, rows=1)  # as a draft model that serves one session
    engines: Engines = {"torch": TorchEngine(own)}
    engines |= {name: OnnxEngine(folder) for name, folder in folders.items()}
    sizes = {name: (folder / MODEL_FILE).stat().st_size for name, folder in folders.items()}
    print(
        f"onnx: bytes: torch {(small / 'model.safetensors').stat().st_size}, "
        + ", ".join(f"{name} {nbytes}" for name, nbytes in sizes.items())
    )
    tokens = measure_in_turn(engines, lambda engine: token_ms(engine, asked[:NUM_TIMED]))
    print_times("a token", tokens)
    print_times(
        f"first token after {PREFILL}", measure_in_turn(engines, lambda engine: prefill_ms(engine, asked[:NUM_TIMED]))
    )
    texts = {prompt: generate(engines["torch"], prompt, LIMIT, ends) for prompt in asked}
    for name, folder in folders.items():
        logits, hidden = max_differences(small, folder, texts)
        print(
            f"{name}: {agreement(engines[name], texts, ends)}; largest difference of logits {logits:.2g}, "
            f"of hidden states {hidden:.2g}; {median_speedup(tokens, name):.2f} times torch's tokens a second"
        )
    faster = median_speedup(tokens, "onnx")
    print(f"onnx: tokens a second over torch's: {faster:.2f}, at least {MIN_SPEEDUP}")
    return faster > MIN_SPEEDUP


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]), Path(sys.argv[2])) else 1)
