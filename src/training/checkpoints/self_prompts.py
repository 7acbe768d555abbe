"""Conversations that a chat model writes with itself, with its distributions over the answers' tokens.

The model is given the chat template up to the user's turn and writes a question (temperature 1), then its answer
(Xu et al., Magpie, 2024). Half of the answers are greedy, half are sampled.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from serving.progress import Progress

TENSORS_FILE, HEADER_FILE = "self_prompts.safetensors", "self_prompts.json"
TENSORS = ("tokens", "text_ends", "answer_starts", "top_tokens", "top_logits")
QUESTION_TOKENS, ANSWER_TOKENS = 96, 192
"""At most, of a conversation."""
ANSWER_TEMPERATURE = 0.8
"""Of every second answer; the others are greedy."""
MIN_ANSWER_TOKENS = 8


@dataclass(frozen=True, eq=False)
class SelfPrompts:
    """`n` conversations, their `t` tokens end to end, of which `a` are answers."""

    tokens: Tensor
    """(t)"""
    text_ends: Tensor
    """(n): where each conversation ends."""
    answer_starts: Tensor
    """(n): number of tokens before each answer, in its conversation."""
    top_tokens: Tensor
    """(a, k): the k likeliest tokens at each answer's position, the likeliest first."""
    top_logits: Tensor
    """(a, k), fp16."""

    def __len__(self) -> int:
        return len(self.text_ends)

    def span(self, text: int) -> tuple[int, int]:
        """(begin, end) of a conversation's tokens."""
        return int(self.text_ends[text - 1]) if text else 0, int(self.text_ends[text])

    def answer_spans(self) -> list[tuple[int, int]]:
        """(begin, end) of each conversation's rows in `top_tokens`."""
        lengths = [
            end - begin - int(start)
            for (begin, end), start in zip(map(self.span, range(len(self))), self.answer_starts, strict=True)
        ]
        ends = torch.tensor(lengths).cumsum(0).tolist()
        return [(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def write(folder: Path, found: SelfPrompts, made_from: dict[str, str]) -> None:
    from safetensors.torch import save_file

    save_file({name: getattr(found, name).contiguous() for name in TENSORS}, folder / TENSORS_FILE)
    header = {
        "made_from": made_from,
        "conversations": len(found),
        "tokens": len(found.tokens),
        "answer_tokens": len(found.top_tokens),
    }
    (folder / HEADER_FILE).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> SelfPrompts:
    """Reads what `record_self_prompts` wrote. Raises ValueError for a damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return SelfPrompts(**load_file(folder / TENSORS_FILE))
    except (OSError, SafetensorError, TypeError) as problem:
        raise ValueError(
            f"the conversations of {folder / TENSORS_FILE} cannot be read ({problem}); train again"
        ) from None


@dataclass(frozen=True)
class _Turns:
    """Token ids of a chat template around a question: before it, and between it and the answer."""

    before: list[int]
    between: list[int]

    @classmethod
    def of(cls, tokenizer: Any) -> "_Turns":
        """Raises ValueError for a tokenizer without a chat template."""
        if not tokenizer.chat_template:
            raise ValueError("the cloud model's tokenizer has no chat template; only a chat model can prompt itself")
        mark = "QUESTION"
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": mark}], add_generation_prompt=True, tokenize=False
        )
        before, _, between = text.partition(mark)
        return cls(*(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, between)))


class _TopLogits:
    """A logits processor of `generate` that keeps the largest logits of each step, and divides rows by temperatures."""

    def __init__(self, k: int, temperatures: Tensor) -> None:
        self._k, self._temperatures = k, temperatures[:, None]
        self.logits: list[Tensor] = []
        self.tokens: list[Tensor] = []

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        logits, tokens = scores.float().topk(self._k)
        self.logits.append(logits.half())
        self.tokens.append(tokens.int())
        return scores / self._temperatures


class SelfPrompter:
    """Writes conversations with a causal LM of `transformers`, `rows` at once."""

    def __init__(self, model: Any, tokenizer: Any, rows: int, k: int) -> None:
        self._model, self._rows, self._k = model, rows, k
        self._turns, self._end = _Turns.of(tokenizer), int(tokenizer.eos_token_id)

    @torch.inference_mode()
    def write(self, seed: int) -> SelfPrompts:
        """At most `rows` conversations, with questions that ended by themselves."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            prompts = [[*self._turns.before, *question] for question in self._questions()]
            return self._answers([[*prompt, *self._turns.between[1:]] for prompt in prompts])

    def _questions(self) -> list[list[int]]:
        """Each with its end token."""
        before = torch.tensor([self._turns.before]).expand(self._rows, -1)
        texts = self._generate(before, torch.ones_like(before), QUESTION_TOKENS, [])
        asked = texts[:, before.shape[1] :].tolist()
        return [tokens[: tokens.index(self._end) + 1] for tokens in asked if self._end in tokens[1:]]

    def _answers(self, prompts: list[list[int]]) -> SelfPrompts:
        longest = max(map(len, prompts))
        ids = torch.tensor([[self._end] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        rows = torch.arange(len(prompts))
        top = _TopLogits(self._k, torch.where(rows % 2 == 0, 1e-4, ANSWER_TEMPERATURE))
        answers = self._generate(ids, mask, ANSWER_TOKENS, [top])[:, longest:].tolist()
        ended = [answer[: answer.index(self._end) + 1] if self._end in answer else answer for answer in answers]
        kept = [row for row, answer in enumerate(ended) if len(answer) >= MIN_ANSWER_TOKENS]
        texts = [[*prompts[row], *ended[row]] for row in kept]
        return SelfPrompts(
            tokens=torch.tensor([token for text in texts for token in text], dtype=torch.int32),
            text_ends=torch.tensor([len(text) for text in texts]).cumsum(0),
            answer_starts=torch.tensor([len(prompts[row]) for row in kept]),
            top_tokens=_rows_of(top.tokens, kept, ended),
            top_logits=_rows_of(top.logits, kept, ended),
        )

    def _generate(self, ids: Tensor, mask: Tensor, num_tokens: int, processors: list[Any]) -> Tensor:
        found: Tensor = self._model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=True, temperature=1.0, top_k=0,
            top_p=1.0, pad_token_id=self._end, eos_token_id=self._end, logits_processor=processors,
        )  # fmt: skip
        return found


def _rows_of(steps: list[Tensor], kept: list[int], answers: list[list[int]]) -> Tensor:
    """(answer tokens, k): of each kept row the steps of its answer, end to end."""
    stacked = torch.stack(steps, 1)
    return torch.cat([stacked[row, : len(answers[row])] for row in kept])


def joined(parts: list[SelfPrompts]) -> SelfPrompts:
    """All conversations of the parts, in their order."""
    ends = [part.text_ends + sum(len(earlier.tokens) for earlier in parts[:i]) for i, part in enumerate(parts)]
    rest = {name: torch.cat([getattr(part, name) for part in parts]) for name in TENSORS if name != "text_ends"}
    return SelfPrompts(text_ends=torch.cat(ends), **rest)


def record(prompter: SelfPrompter, num_answer_tokens: int, seed: int, work: Path, progress: Progress) -> SelfPrompts:
    """Conversations with at least `num_answer_tokens` in their answers; goes on from the parts in `work`."""
    parts: list[SelfPrompts] = []
    done = 0
    while done < num_answer_tokens:
        folder = work / str(len(parts))
        if not (folder / HEADER_FILE).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, prompter.write(seed * 100_003 + len(parts)), {})
        parts.append(read(folder))
        done += len(parts[-1].top_tokens)
        progress(min(done, num_answer_tokens), num_answer_tokens, f"{sum(map(len, parts))} conversations")
    return joined(parts)
