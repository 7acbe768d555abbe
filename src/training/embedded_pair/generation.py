"""Greedy outputs of a checkpoint on many prompts, by transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from training.embedded_pair import tokenizer as tokenizers

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

BATCH = 100


def load(checkpoint: Path) -> LlamaForCausalLM:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(str(checkpoint), dtype=torch.float32)


@torch.no_grad()
def greedy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    *,
    limit: int = 40,
    done: Callable[[int], None] = lambda _: None,
) -> list[list[int]]:
    """Each prompt's output ids, end of sequence included; `done` is told how many are finished."""
    ids = tokenizers.prompt_ids(tokenizer, prompts)
    # By length, so that a batch pads little.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    outputs: dict[int, list[int]] = {}
    for begin in range(0, len(order), BATCH):
        members = order[begin : begin + BATCH]
        outputs |= zip(members, _batch(model, [ids[i] for i in members], limit), strict=True)
        done(len(outputs))
    return [outputs[i] for i in range(len(ids))]


def _batch(model: LlamaForCausalLM, ids: list[list[int]], limit: int) -> list[list[int]]:
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, ids))
    padded = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    written = model.generate(inputs=padded, attention_mask=seen, max_new_tokens=limit, do_sample=False)  # type: ignore[misc]
    rows: list[list[int]] = cast(Tensor, written)[:, width:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]
