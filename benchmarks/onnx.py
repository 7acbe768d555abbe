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

from benchmarks.engine import chat
from serving.engines.models import Checkpoint
from serving.engines.onnx.engine import OnnxEngine
from serving.engines.onnx.export import export
from serving.engines.onnx.header import MODEL
from serving.engines.onnx.session import Session
from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.engine import Engine
from serving.engines.torch.model import open_model
from serving.messages import Drafted, Generate, Stop
from serving.workload.datasets.tiny import TinyTasks

PROMPTS, TIMED, ROUNDS = 240, 12, 15
TOKENS, LIMIT = 32, 48
PREFILL = 128
LEAST = 1.0
"""How many times as fast per token as torch onnxruntime has to be."""
Prompt: TypeAlias = tuple[int, ...]
Engines: TypeAlias = dict[str, Any]


def written(engine: Any, prompt: Prompt, limit: int, ends: tuple[int, ...] = ()) -> tuple[int, ...]:
    drafted, _ = engine.execute(Generate("s", 0, prompt, Stop(limit), ends))
    engine.drop("s", None)
    assert isinstance(drafted, Drafted)
    return drafted.tokens


def token_ms(engine: Any, prompts: Sequence[Prompt]) -> float:
    """Milliseconds a token of continuing each prompt, its prefill not counted."""
    spent_s = 0.0
    for prompt in prompts:
        engine.execute(Generate("s", 0, prompt[:-1], Stop(0)))
        began = time.perf_counter()
        engine.execute(Generate("s", len(prompt) - 1, prompt[-1:], Stop(TOKENS)))
        spent_s += time.perf_counter() - began
        engine.drop("s", None)
    return 1e3 * spent_s / (TOKENS * len(prompts))


def prefill_ms(engine: Any, prompts: Sequence[Prompt]) -> float:
    """Milliseconds to the first token behind a prompt of so many tokens."""
    long = tuple(token for prompt in prompts for token in prompt)[:PREFILL]
    began = time.perf_counter()
    for _ in range(TIMED):
        written(engine, long, 1)
    return 1e3 * (time.perf_counter() - began) / TIMED


def in_turn(engines: Engines, once: Callable[[Any], float]) -> dict[str, list[float]]:
    """What `once` says of each engine, round by round, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(ROUNDS + 1):
        for name in sorted(engines, key=lambda name: (list(engines).index(name) + round_) % len(engines)):
            value = once(engines[name])
            if round_:
                found[name].append(value)
    return found


def show(what: str, found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        print(f"onnx: {what}, {name:9} {statistics.median(values):.3f} ms ({min(values):.3f} to {max(values):.3f})")


def ratio(found: dict[str, list[float]], name: str) -> float:
    """Median over rounds of torch's time over this one's."""
    return statistics.median(a / b for a, b in zip(found["torch"], found[name], strict=True))


def agreement(engine: Any, texts: dict[Prompt, tuple[int, ...]], ends: tuple[int, ...]) -> str:
    """How many whole answers, and how many tokens up to the first that differs, are torch's."""
    own = {prompt: written(engine, prompt, LIMIT, ends) for prompt in texts}
    whole = sum(own[prompt] == text for prompt, text in texts.items())
    same = sum(shared(own[prompt], text) for prompt, text in texts.items())
    total = sum(map(len, texts.values()))
    return (
        f"{whole} of {len(texts)} greedy answers token for token, {same / total:.2%} of {total} tokens before a first "
        "difference"
    )


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of their common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@torch.inference_mode()
def differences(small: Path, folder: Path, texts: dict[Prompt, tuple[int, ...]]) -> tuple[float, float]:
    """The largest of a logit and of a number of a hidden state, over all positions of all texts."""
    from transformers import AutoModelForCausalLM

    causal, session, logits, hidden = AutoModelForCausalLM.from_pretrained(small).eval(), Session(folder), 0.0, 0.0
    for prompt, text in texts.items():
        tokens = (*prompt, *text)
        want = causal(torch.tensor([tokens]), output_hidden_states=True)
        ran = session.run(tokens, range(len(tokens)), session.empty())
        logits = max(logits, float((torch.from_numpy(ran.logits) - want.logits[0]).abs().max()))
        hidden = max(hidden, float((torch.from_numpy(ran.hidden) - want.hidden_states[-1][0]).abs().max()))
    return logits, hidden


def main(small: Path, corpus: Path) -> bool:
    torch.set_num_threads(1)
    tokenizer = Tokenizer(small)
    items = TinyTasks(corpus=corpus).prompts()
    asked = [tuple(chat(tokenizer, item.text)) for item in items[:: max(1, len(items) // PROMPTS)][:PROMPTS]]
    with tempfile.TemporaryDirectory() as work:
        folders = {name: Path(work) / name for name in ("onnx", "onnx int8")}
        for name, folder in folders.items():
            folder.mkdir()
            export(Checkpoint(path=small), folder, int8=name.endswith("int8"))
        return compared(small, folders, asked, tokenizer.ends)


def compared(small: Path, folders: dict[str, Path], asked: list[Prompt], ends: tuple[int, ...]) -> bool:
    engines: Engines = {"torch": Engine(open_model(small))}
    engines |= {name: OnnxEngine(folder) for name, folder in folders.items()}
    print(f"onnx: bytes: torch {(small / 'model.safetensors').stat().st_size}, "
          + ", ".join(f"{name} {(folder / MODEL).stat().st_size}" for name, folder in folders.items()))  # fmt: skip
    tokens = in_turn(engines, lambda engine: token_ms(engine, asked[:TIMED]))
    show("a token", tokens)
    show(f"first token after {PREFILL}", in_turn(engines, lambda engine: prefill_ms(engine, asked[:TIMED])))
    texts = {prompt: written(engines["torch"], prompt, LIMIT, ends) for prompt in asked}
    for name, folder in folders.items():
        logits, hidden = differences(small, folder, texts)
        print(f"{name}: {agreement(engines[name], texts, ends)}; largest difference of logits {logits:.2g}, "
              f"of hidden states {hidden:.2g}; {ratio(tokens, name):.2f} times torch's tokens a second")  # fmt: skip
    faster = ratio(tokens, "onnx")
    print(f"onnx: tokens a second over torch's: {faster:.2f}, at least {LEAST}")
    return faster > LEAST


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]), Path(sys.argv[2])) else 1)
