"""Tokens per second of the engine beside `transformers`' own generate, on one pair, in one run, on one thread.

Every method writes the large model's greedy continuation of the same prompts. Ratios are taken round by round, so that
a machine that is busy for a while slows both sides of a ratio.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.packed_layers import pack_weights
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span

Prompts = list[tuple[int, ...]]
Outputs = list[tuple[int, ...]]
SESSIONS = 16


def truncate(tokens: list[int], limit: int, end: int | None) -> tuple[int, ...]:
    """At most `limit` tokens, up to and with the end token."""
    tokens = tokens[:limit]
    return tuple(tokens[: tokens.index(end) + 1]) if end in tokens else tuple(tokens)


class TransformersBaseline:
    """`generate`, as its documentation uses it."""

    def __init__(self, large: Any, small: Any, limit: int, end: int | None) -> None:
        self.large, self.small, self.limit, self.end = large, small, limit, end

    def one_by_one(self, prompts: Prompts) -> Outputs:
        return [self._generate_one(prompt) for prompt in prompts]

    def assisted(self, prompts: Prompts) -> Outputs:
        return [self._generate_one(prompt, assistant_model=self.small) for prompt in prompts]

    def batch(self, prompts: Prompts) -> Outputs:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = self._generate(ids, attention_mask=mask)
        return [truncate(row[longest:].tolist(), self.limit, self.end) for row in out]

    def _generate_one(self, prompt: tuple[int, ...], **how: Any) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        out = self._generate(ids, attention_mask=torch.ones_like(ids), **how)
        return truncate(out[0, len(prompt) :].tolist(), self.limit, self.end)

    def _generate(self, ids: torch.Tensor, **how: Any) -> Any:
        return self.large.generate(
            ids, max_new_tokens=self.limit, do_sample=False, eos_token_id=self.end, pad_token_id=0, **how
        )


def _packed_engine(causal: Any) -> TorchEngine:
    """The engine as it serves many sessions: its weights are packed."""
    model = decompose(causal)
    pack_weights(model)
    return TorchEngine(model)


class TandemRunner:
    """The engine: one stream or all at once, with drafts or without."""

    def __init__(self, large: Any, small: Any, limit: int, end: int | None, draft: int) -> None:
        self.draft = draft
        self.large, self.small = _packed_engine(large), _packed_engine(small)
        self.full_spans = {engine: Span(0, len(engine.model.layers), True, True) for engine in (self.large, self.small)}
        self.limit, self.end = limit, end
        self.ends = () if end is None else (end,)

    def one_by_one(self, prompts: Prompts) -> Outputs:
        return [self.speculate([prompt])[0] for prompt in prompts]

    def decode(self, prompts: Prompts) -> Outputs:
        """All at once without drafts; a session that is done leaves the batch."""
        texts, cached = [list(prompt) for prompt in prompts], [0] * len(prompts)
        active = list(range(len(prompts)))
        while active:
            for i, token in zip(active, self._next_tokens(self.large, texts, cached, active), strict=True):
                texts[i].append(token)
            active = [i for i in active if not self._done(texts[i], prompts[i])]
        return self._finish(texts, prompts)

    def speculate(self, prompts: Prompts) -> Outputs:
        """All sessions are verified in one forward; several sessions also draft in one forward."""
        texts = [list(prompt) for prompt in prompts]
        drafted, verified, active = [0] * len(prompts), [0] * len(prompts), list(range(len(prompts)))
        while active:
            drafts = self._draft(texts, drafted, active)
            rows = [
                self._sequence_slice(texts[i], verified[i], draft, i) for i, draft in zip(active, drafts, strict=True)
            ]
            results, _ = self.large.execute(
                ForwardWork(self.full_spans[self.large], tuple(rows), ("last",) * len(rows))
            )
            for i, draft, result in zip(active, drafts, results, strict=True):
                verified[i] = len(texts[i]) + result.verdict.accepted
                drafted[i] = min(drafted[i], verified[i])
                texts[i] += [*draft[: result.verdict.accepted], result.verdict.next_token]
            active = [i for i in active if not self._done(texts[i], prompts[i])]
        return self._finish(texts, prompts)

    def _draft(self, texts: list[list[int]], cached: list[int], active: list[int]) -> list[list[int]]:
        """Up to `draft` tokens for each, none after an end token."""
        if len(texts) == 1:
            (i,) = active
            work = DraftWork(str(i), cached[i], tuple(texts[i][cached[i] :]), DraftStopRule(self.draft), self.ends)
            out, _ = self.small.execute(work)
            cached[i] = out.cached_len
            return [list(out.tokens)]
        ahead, drafts = [list(text) for text in texts], {i: [] for i in active}
        while going := [i for i in active if len(drafts[i]) < self.draft and not set(drafts[i][-1:]) & set(self.ends)]:
            for i, token in zip(going, self._next_tokens(self.small, ahead, cached, going), strict=True):
                drafts[i].append(token)
                ahead[i].append(token)
        return [drafts[i] for i in active]

    def _next_tokens(
        self, engine: TorchEngine, texts: list[list[int]], cached: list[int], active: list[int]
    ) -> list[int]:
        rows = [self._sequence_slice(texts[i], cached[i], [], i) for i in active]
        results, _ = engine.execute(ForwardWork(self.full_spans[engine], tuple(rows), ("last",) * len(rows)))
        for i in active:
            cached[i] = len(texts[i])
        return [result.verdict.next_token for result in results]

    def _sequence_slice(self, text: list[int], start: int, draft: list[int], i: int) -> SequenceSlice:
        new = (*text[start:], *draft)
        return SequenceSlice(str(i), start, len(new), new, len(draft), "greedy")

    def _done(self, text: list[int], prompt: tuple[int, ...]) -> bool:
        return len(text) - len(prompt) >= self.limit or self.end in text[len(prompt) :]

    def _finish(self, texts: list[list[int]], prompts: Prompts) -> Outputs:
        for i in range(len(prompts)):
            for engine, first in ((self.large, 0), (self.small, 0), (self.small, None)):
                engine.drop(str(i), first)
        return [
            truncate(text[len(prompt) :], self.limit, self.end) for text, prompt in zip(texts, prompts, strict=True)
        ]


def measure_rates(methods: dict[str, Callable[[], Outputs]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each method, round by round, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in methods}
    written: dict[str, Outputs] = {}
    for round_ in range(rounds + 1):
        for name, method in methods.items():
            began = time.perf_counter()
            written[name] = method()
            elapsed_s = time.perf_counter() - began
            if round_:
                found[name].append(sum(map(len, written[name])) / elapsed_s)
    report_differences(written)
    return found


def report_differences(written: dict[str, Outputs]) -> None:
    """Near-ties may fall differently in batches of other shapes; anything more would be a bug."""
    wanted = written["generate 16"]
    for name, texts in written.items():
        differing = sum(a != b for a, b in zip(wanted, texts, strict=False))
        if differing:
            print(f"note: {name} differs from generate on {differing} of {len(texts)} prompts")


def check_ratio(found: dict[str, list[float]], method: str, baselines: list[str], least: float) -> bool:
    """Prints the median ratio to the better of `baselines`; is it at least `least`?"""
    ratios = [rate / max(found[o][i] for o in baselines) for i, rate in enumerate(found[method])]
    middle = statistics.median(ratios)
    print(
        f"{method} / {' or '.join(baselines)}: {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), at least {least}"
    )
    return middle >= least


def open_pair(args: argparse.Namespace) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    large, small = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (args.large, args.small))
    return large, small


def load_prompts(args: argparse.Namespace) -> tuple[Prompts, int | None]:
    """16 prompts of a JSONL file of test items and the end token; or random tokens, whose answers never end."""
    generator = torch.Generator().manual_seed(0)
    if args.items is None:
        lengths = torch.randint(20, 120, (SESSIONS,), generator=generator).tolist()
        return [tuple(torch.randint(5, 1000, (n,), generator=generator).tolist()) for n in lengths], None
    tokenizer = Tokenizer(args.large)
    texts = [json.loads(line)["prompt"] for line in args.items.read_text().splitlines()]
    chosen = torch.randperm(len(texts), generator=generator)[:SESSIONS].tolist()
    return [tuple(chat_tokens(tokenizer, texts[i])) for i in chosen], tokenizer.eos_token_ids[0]


def chat_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    turn = [{"role": "user", "content": text}]
    tokens: list[int] = tokenizer.hf.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    return tokens


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("large", type=Path, help="checkpoint directory of the model that verifies")
    parser.add_argument("small", type=Path, help="checkpoint directory of the model that drafts")
    parser.add_argument("--items", type=Path, help="JSONL with a field prompt; absent: random tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="at most so many new tokens a prompt")
    parser.add_argument("--draft", type=int, default=8, help="tokens drafted a round at most")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)

    prompts, end = load_prompts(args)
    theirs = TransformersBaseline(*open_pair(args), args.tokens, end)
    ours = TandemRunner(*open_pair(args), args.tokens, end, args.draft)
    found = measure_rates(
        {
            "generate": lambda: theirs.one_by_one(prompts[:8]),
            "assisted": lambda: theirs.assisted(prompts[:8]),
            "stream": lambda: ours.one_by_one(prompts[:8]),
            "generate 16": lambda: theirs.one_by_one(prompts),
            "batch 16": lambda: theirs.batch(prompts),
            "speculate 16": lambda: ours.speculate(prompts),
            "decode 16": lambda: ours.decode(prompts),
        },
        args.rounds,
    )
    for name, rate in found.items():
        print(f"{name:14} {statistics.median(rate):8.0f} tokens/s ({min(rate):.0f} to {max(rate):.0f})")
    best = max(("speculate 16", "decode 16"), key=lambda name: statistics.median(found[name]))
    passed = [
        check_ratio(found, "stream", ["generate", "assisted"], 1.3),
        check_ratio(found, best, ["generate 16"], 3.0),
        check_ratio(found, best, ["batch 16"], 1.2),
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
