"""Conversations that a chat model writes with itself, with its distributions over the answers' tokens.

The model is given the chat template up to the user's turn and writes a question (temperature 1), then its answer
(Xu et al., Magpie, 2024). Half of the answers are greedy, half are sampled.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from serving.progress import Progress
from training.checkpoints.row_decoder import RowDecoder

TENSORS_FILE, HEADER_FILE = "self_prompts.safetensors", "self_prompts.json"
TENSORS = ("tokens", "text_ends", "answer_starts", "top_tokens", "top_logits")
QUESTION_TOKENS, ANSWER_TOKENS = 96, 192
"""At most, of a conversation."""
ANSWER_TEMPERATURE = 0.8
"""Of every second answer; the others are greedy."""
MIN_ANSWER_TOKENS, MIN_QUESTION_TOKENS = 8, 4
PART_ANSWER_TOKENS = 8192
"""After so many the conversations are saved."""


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
        """Raises ValueError for a tokenizer without a chat template, or with one that ends turns by another token."""
        if not tokenizer.chat_template:
            raise ValueError("the cloud model's tokenizer has no chat template; only a chat model can prompt itself")
        mark = "QUESTION"
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": mark}], add_generation_prompt=True, tokenize=False
        )
        before, _, between = text.partition(mark)
        turns = cls(*(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, between)))
        if len(turns.between) < 2 or turns.between[0] != tokenizer.eos_token_id:
            raise ValueError(
                f"the cloud model's chat template has {between!r} behind a question, which does not begin with the end "
                f"token {tokenizer.eos_token!r}: the model cannot end its own questions. Give a model with turns "
                "that end with its end token, as SmolLM2's and Qwen's do"
            )
        return turns


@dataclass
class _Conversation:
    """What one row of a batch has written so far."""

    row: int
    prompt: list[int]
    """The template and the question, and once that has ended what leads to the answer."""
    pending: deque[int] = field(default_factory=deque)
    """Tokens of the template that are still to be read."""
    answer: list[int] | None = None
    """None until the question has ended."""
    first_step: int = 0
    """The step that wrote the answer's first token."""


class SelfPrompter:
    """Writes conversations with a Llama-like model of `transformers`, in `rows` rows; each begins its next one when one
    has ended.
    """

    def __init__(self, model: Any, tokenizer: Any, rows: int, k: int) -> None:
        self._model, self._rows, self._k = model, rows, k
        self._turns, self._end = _Turns.of(tokenizer), int(tokenizer.eos_token_id)

    @torch.inference_mode()
    def write(self, num_answer_tokens: int, seed: int) -> SelfPrompts:
        """Conversations with about this many tokens in their answers; the last ones are cut where they are.

        Raises ValueError for a model that does not end its questions.
        """
        generator = torch.Generator().manual_seed(seed)
        capacity = len(self._turns.before) + len(self._turns.between) + QUESTION_TOKENS + ANSWER_TOKENS + 1
        decoder = RowDecoder(self._model, self._turns.before, self._rows, capacity)
        rows = [self._new_conversation(row) for row in range(self._rows)]
        ended: list[_Conversation] = []
        top: list[tuple[Tensor, Tensor]] = []
        while _num_answer_tokens([*ended, *rows]) < num_answer_tokens:
            logits = decoder.logits()
            values, tokens = logits.topk(self._k)
            top.append((values.half(), tokens.int()))
            sampled = self._sample(logits, tokens[:, 0], rows, generator).tolist()
            for row, token in enumerate(sampled):
                read, over = self._advance(rows[row], token, len(top) - 1)
                decoder.push(row, read)
                if over:
                    ended.append(rows[row])
                    rows[row] = self._new_conversation(row)
                    decoder.restart(row)
            if len(top) == 4 * QUESTION_TOKENS and not _num_answer_tokens([*ended, *rows]):
                raise ValueError(f"the model ended no question within {len(top)} tokens; only a chat model does")
        return _collect([*ended, *rows], top)

    @torch.inference_mode()
    def ask(self, count: int, seed: int, progress: Progress) -> list[tuple[int, ...]]:
        """`count` different questions, as tokens. Rows write side by side, so short questions are found first.

        Raises ValueError for a model that does not end its questions.
        """
        generator, before = torch.Generator().manual_seed(seed), self._turns.before
        decoder = RowDecoder(self._model, before, self._rows, len(before) + QUESTION_TOKENS + 1)
        rows: list[list[int]] = [[] for _ in range(self._rows)]
        found: dict[tuple[int, ...], None] = {}
        steps = 0
        while len(found) < count:
            for row, token in enumerate(_drawn(decoder.logits(), torch.ones(self._rows), generator).tolist()):
                if token == self._end and len(rows[row]) >= MIN_QUESTION_TOKENS:
                    found[tuple(rows[row])] = None
                over = token == self._end or len(rows[row]) == QUESTION_TOKENS
                rows[row] = [] if over else [*rows[row], token]
                decoder.push(row, token)
                if over:
                    decoder.restart(row)
            steps += 1
            progress(min(len(found), count), count, "questions")
            if steps > QUESTION_TOKENS * (2 + len(found)):
                raise ValueError(f"the model asked {len(found)} questions in {steps} steps; only a chat model asks")
        return list(found)[:count]

    def _new_conversation(self, row: int) -> _Conversation:
        return _Conversation(row, list(self._turns.before))

    def _sample(
        self, logits: Tensor, likeliest: Tensor, rows: Sequence[_Conversation], generator: torch.Generator
    ) -> Tensor:
        """(rows): questions at temperature 1; answers of even rows are greedy, of odd ones at `ANSWER_TEMPERATURE`."""
        answering = torch.tensor([one.answer is not None for one in rows])
        drawn = _drawn(logits, torch.where(answering, ANSWER_TEMPERATURE, 1.0), generator)
        greedy = answering & (torch.arange(len(rows)) % 2 == 0)
        return torch.where(greedy, likeliest.long(), drawn)

    def _advance(self, one: _Conversation, sampled: int, step: int) -> tuple[int, bool]:
        """(the token that the row reads next, True if the conversation is over); `sampled` is what the model wrote."""
        if one.pending:
            one.prompt.append(one.pending.popleft())
            if not one.pending:
                one.answer, one.first_step = [], step + 1
            return one.prompt[-1], False
        if one.answer is not None:
            one.answer.append(sampled)
            return sampled, sampled == self._end or len(one.answer) == ANSWER_TOKENS
        one.prompt.append(sampled)
        if sampled == self._end:
            one.pending.extend(self._turns.between[1:])
        return sampled, sampled != self._end and len(one.prompt) - len(self._turns.before) == QUESTION_TOKENS


def _num_answer_tokens(conversations: Sequence[_Conversation]) -> int:
    return sum(len(one.answer) for one in conversations if one.answer is not None)


def _collect(conversations: Sequence[_Conversation], top: Sequence[tuple[Tensor, Tensor]]) -> SelfPrompts:
    """Those with an answer of some length; `top` holds each step's logits and tokens, (rows, k)."""
    kept = [(one, one.answer) for one in conversations if one.answer and len(one.answer) >= MIN_ANSWER_TOKENS]
    texts = [[*one.prompt, *answer] for one, answer in kept]
    logits, tokens = (torch.stack([each[part] for each in top], 1) for part in (0, 1))

    def of_answers(found: Tensor) -> Tensor:
        """(answer tokens, k): the steps that wrote each answer, end to end."""
        return torch.cat([found[one.row, one.first_step : one.first_step + len(answer)] for one, answer in kept])

    return SelfPrompts(
        tokens=torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        text_ends=torch.tensor([len(text) for text in texts]).cumsum(0),
        answer_starts=torch.tensor([len(one.prompt) for one, _ in kept]),
        top_tokens=of_answers(tokens),
        top_logits=of_answers(logits),
    )


def _drawn(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """(rows): a token of each row, at its temperature.

    One number a row, found in the cumulative distribution: `multinomial` would draw one for every token.
    """
    cumulative = (logits / temperatures[:, None]).softmax(-1).cumsum(-1)
    drawn = torch.rand(len(logits), 1, generator=generator) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, drawn)[:, 0]


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
            write(folder, prompter.write(PART_ANSWER_TOKENS, seed * 100_003 + len(parts)), {})
        parts.append(read(folder))
        done += len(parts[-1].top_tokens)
        progress(min(done, num_answer_tokens), num_answer_tokens, f"{sum(map(len, parts))} conversations")
    return joined(parts)
