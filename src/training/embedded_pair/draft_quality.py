"""Quality of a small model's drafts for a large one, token by token on the large model's greedy outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.embedded_pair.tasks import content_spans

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

BATCH_SIZE = 50


@dataclass
class DraftQuality:
    """One entry for each output: the small model's draft at every position."""

    accepted: list[NDArray[np.bool_]] = field(default_factory=list)
    """True if the small model's most likely token is the large model's."""
    confidence: list[NDArray[np.float64]] = field(default_factory=list)
    """The probability of that token."""
    is_content: list[NDArray[np.bool_]] = field(default_factory=list)
    """True if the token belongs to a word that is not from a template."""
    exit_agreement: list[NDArray[np.bool_]] = field(default_factory=list)
    """(layers, tokens): True if an exit after that layer gives the last layer's token."""


@torch.no_grad()
def measure_drafts(
    small: "LlamaForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    on_progress: Callable[[int], None] = lambda _: None,
) -> DraftQuality:
    """Runs `small` once over each prompt followed by the large model's output (token ids)."""
    drafts = DraftQuality()
    for begin in range(0, len(prompts), BATCH_SIZE):
        pairs = list(zip(prompts[begin : begin + BATCH_SIZE], outputs[begin : begin + BATCH_SIZE], strict=True))
        for (prompt, output), hidden in zip(pairs, _layer_hidden_states(small, pairs), strict=True):
            _record_drafts(
                drafts, small, hidden[:, len(prompt) - 1 : len(prompt) + len(output) - 1], torch.tensor(output)
            )
            drafts.is_content.append(content_mask(tokenizer, output))
        on_progress(begin + len(pairs))
    return drafts


def _layer_hidden_states(small: "LlamaForCausalLM", pairs: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Normed hidden states (rows, layers, length, d) after each layer; right-padded, which a causal model ignores."""
    width = max(len(prompt) + len(output) for prompt, output in pairs)
    ids = torch.tensor([(prompt + output + [0] * width)[:width] for prompt, output in pairs])
    *inner, last = small(ids, output_hidden_states=True).hidden_states[1:]
    return torch.stack([*(small.model.norm(states) for states in inner), last], dim=1)


def _record_drafts(drafts: DraftQuality, small: "LlamaForCausalLM", hidden: Tensor, target_tokens: Tensor) -> None:
    logits = small.lm_head(hidden).float()
    top = logits.argmax(-1)
    drafts.accepted.append((top[-1] == target_tokens).numpy())
    drafts.confidence.append(logits[-1].softmax(-1).amax(-1).double().numpy())
    drafts.exit_agreement.append((top == top[-1]).numpy())


def content_mask(tokenizer: "PreTrainedTokenizerFast", output: Sequence[int]) -> NDArray[np.bool_]:
    """True for the tokens of an output that overlap a content word; False for the end of sequence."""
    pieces = tokenizer.batch_decode([[token] for token in output], skip_special_tokens=True)
    ends = np.cumsum([len(piece) for piece in pieces])
    spans = list(content_spans("".join(pieces)))
    touched = [
        any(begin < right and left < end for left, right in spans)
        for begin, end in zip(ends - [len(piece) for piece in pieces], ends, strict=True)
    ]
    return np.array(touched, dtype=np.bool_)


def tokens_per_round(accepted: Sequence[NDArray[np.bool_]], num_drafts: int) -> float:
    """Mean tokens per verification: the accepted ones of at most `num_drafts` drafts, and the verifier's own."""
    tokens = rounds = 0
    for output in accepted:
        place = 0
        while place < len(output):
            window = output[place : place + num_drafts]
            place += (len(window) if window.all() else int(window.argmin())) + 1
            rounds += 1
        tokens += len(output)
    return tokens / rounds if rounds else 0.0
