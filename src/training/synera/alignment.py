"""The large model's greedy answers, token by token, as the small model predicts them, and the verified drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from serving.core.scores import IMPORTANCE
from serving.deployment.queries import LoadedModels, Query
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.messages import DraftDecision
from serving.outcomes.offline import run_untimed
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import NoEarlyExit
from serving.progress import Progress
from training.embedded_pair.draft_quality import content_mask
from training.fitting.cluster_statistics import Flags, Floats, Ints
from training.synera.thresholds import mean_score, profiling_policy

if TYPE_CHECKING:
    from serving.metrics.recorder import SessionRecord

TOP_K = 5


@dataclass(frozen=True)
class AlignedTokens:
    """The answers' tokens, one entry each; the text before each of them is the large model's."""

    answer: Ints
    """Which answer it is in, from 0."""
    confidence: Floats
    """The probability of the small model's likeliest token in this place."""
    top_1: Flags
    """That token is the large model's."""
    top_5: Flags
    """The large model's token is among the small one's five likeliest."""
    content: Flags
    """The large model's token belongs to a word that no template explains."""
    importance: Floats
    """Of the draft that was judged in this place; NaN where none was, as behind a draft that stood whole."""


@dataclass(frozen=True)
class VerifiedDrafts:
    """The judged drafts, one entry each: means over their tokens, as selection reads them (Synera, section 4.2)."""

    answer: Ints
    confidence: Floats
    importance: Floats
    has_rejection: Flags
    """Not all of it stood."""


@dataclass(frozen=True)
class Alignment:
    """What was found on so many answers, of these tasks ("" where a data set has none)."""

    tasks: tuple[str, ...]
    tokens: AlignedTokens
    drafts: VerifiedDrafts

    @property
    def num_answers(self) -> int:
        return len(self.tasks)


def align(models: LoadedModels, queries: Sequence[Query], gamma: int, seed: int, progress: Progress) -> Alignment:
    """Every draft of `gamma` tokens is verified, so that the answers are the large model's; then each answer is run
    through the small model once (teacher forcing).
    """
    records = run_untimed(profiling_policy(WindowDraft(gamma), NoEarlyExit()), models, queries, seed, progress)
    answers = [(query.request.prompt, records[query.request.session]) for query in queries]
    stack, words = _draft_model_runner(models), models.tokenizer.hf
    tokens = [_aligned_tokens(i, stack, words, prompt, record) for i, (prompt, record) in enumerate(answers)]
    drafts = [(i, chunk) for i, (_, record) in enumerate(answers) for chunk in record.draft_decisions]
    return Alignment(tuple(query.prompt.task for query in queries), _concatenated(tokens), _verified_drafts(drafts))


def top_k_hits(logits: torch.Tensor, target_tokens: Sequence[int]) -> tuple[Floats, Flags, Flags]:
    """Confidence, top-1 hits and top-5 hits of logits of shape (tokens, vocabulary) against the wanted tokens."""
    top = logits.softmax(-1).topk(min(TOP_K, logits.shape[-1]))
    hits: Flags = (top.indices.cpu() == torch.tensor(target_tokens)[:, None]).numpy()
    return top.values[:, 0].double().cpu().numpy(), hits[:, 0], np.any(hits, axis=1)


def drafted_importance(decisions: Sequence[DraftDecision], prompt_len: int, answer_len: int) -> Floats:
    """Per token of an answer of `answer_len` behind `prompt_len` tokens; drafts behind the first miss stand in no place
    of it.
    """
    found = np.full(answer_len, np.nan)
    for chunk in decisions:
        at = chunk.position - prompt_len
        judged = chunk.scores[IMPORTANCE][: (chunk.accepted or 0) + 1][: answer_len - at]
        found[at : at + len(judged)] = judged
    return found


def _draft_model_runner(models: LoadedModels) -> ModelRunner:
    small, large = (_model(engine) for engine in (models.device, models.cloud))
    return ModelRunner(small, min(len(models.tokenizer), small.vocab_size, large.vocab_size))


def _model(engine: Any) -> Any:
    return engine.model


def _aligned_tokens(
    answer: int, runner: ModelRunner, tokenizer: Any, prompt: tuple[int, ...], record: SessionRecord
) -> AlignedTokens:
    n = len(record.tokens)
    confidence, top_1, top_5 = top_k_hits(
        _teacher_forced_logits(runner, (*prompt, *record.tokens), len(prompt)), record.tokens
    )
    importance = drafted_importance(record.draft_decisions, len(prompt), n)
    return AlignedTokens(
        np.full(n, answer), confidence, top_1, top_5, content_mask(tokenizer, record.tokens), importance
    )


@torch.inference_mode()
def _teacher_forced_logits(runner: ModelRunner, token_ids: tuple[int, ...], first: int) -> torch.Tensor:
    """Logits for path[first:], each behind all that precedes it."""
    depth, fed = len(runner.model.layers), token_ids[:-1]
    hidden = runner.run(runner.embed(fed), [RunnerInput(SequenceCache(runner.model, 0, depth), len(fed))], 0, depth)
    return runner.logits(hidden[first - 1 :])


def _concatenated(parts: Sequence[AlignedTokens]) -> AlignedTokens:
    return AlignedTokens(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in AlignedTokens.__annotations__)
    )


def _verified_drafts(found: Sequence[tuple[int, DraftDecision]]) -> VerifiedDrafts:
    chunks = [chunk for _, chunk in found]
    return VerifiedDrafts(
        np.array([i for i, _ in found], np.int64),
        np.array([mean_score(chunk, "confidence") for chunk in chunks]),
        np.array([mean_score(chunk, IMPORTANCE) for chunk in chunks]),
        np.array([(chunk.accepted or 0) < len(chunk.tokens) for chunk in chunks], np.bool_),
    )
