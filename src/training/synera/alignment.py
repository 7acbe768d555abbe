"""The large model's greedy answers, token by token, as the small model sees them, and the drafts that were judged.

Shares, AUC and correlation over tokens that come in answers.

Tokens of one answer are not independent of each other, so a share or an AUC is given as one number for each answer:
their mean is the figure over all tokens, and their spread is the figure's when answers are resampled, to first order
(ratios: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 21.8, the delta method; AUC: Obuchowski
1997, Nonparametric analysis of clustered ROC curve data).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from serving.core.scores import IMPORTANCE
from serving.deployment.queries import Models, Query
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.messages import Chunk
from serving.outcomes.offline import play
from serving.policy.slots.draft import Window
from serving.policy.slots.early_exit import NoExit
from serving.progress import Progress
from training.embedded_pair.draft_quality import content_mask
from training.synera.thresholds import mean_score, profiling_policy

if TYPE_CHECKING:
    from serving.metrics.recorder import Record

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
TOP = 5


@dataclass(frozen=True)
class Tokens:
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
class Drafts:
    """The judged drafts, one entry each: means over their tokens, as selection reads them (Synera, section 4.2)."""

    answer: Ints
    confidence: Floats
    importance: Floats
    cut: Flags
    """Not all of it stood."""


@dataclass(frozen=True)
class Alignment:
    """What was found on so many answers, of these tasks ("" where a data set has none)."""

    tasks: tuple[str, ...]
    tokens: Tokens
    drafts: Drafts

    @property
    def answers(self) -> int:
        return len(self.tasks)


def align(models: Models, queries: Sequence[Query], gamma: int, seed: int, progress: Progress) -> Alignment:
    """Every draft of `gamma` tokens is verified, so that the answers are the large model's; then each answer is run
    through the small model once (teacher forcing).
    """
    records = play(profiling_policy(Window(gamma), NoExit()), models, queries, seed, progress)
    answers = [(query.call.prompt, records[query.call.session]) for query in queries]
    stack, words = _small(models), models.tokenizer.hf
    tokens = [_tokens(i, stack, words, prompt, record) for i, (prompt, record) in enumerate(answers)]
    drafts = [(i, chunk) for i, (_, record) in enumerate(answers) for chunk in record.chunks]
    return Alignment(tuple(query.prompt.task for query in queries), _joined(tokens), _drafts(drafts))


def judge(logits: torch.Tensor, wanted: Sequence[int]) -> tuple[Floats, Flags, Flags]:
    """Confidence, top-1 hits and top-5 hits of logits of shape (tokens, vocabulary) against the wanted tokens."""
    top = logits.softmax(-1).topk(min(TOP, logits.shape[-1]))
    hits: Flags = (top.indices.cpu() == torch.tensor(wanted)[:, None]).numpy()
    return top.values[:, 0].double().cpu().numpy(), hits[:, 0], np.any(hits, axis=1)


def drafted_importance(chunks: Sequence[Chunk], begin: int, n: int) -> Floats:
    """Per token of an answer of `n` behind `begin` tokens; drafts behind the first miss stand in no place of it."""
    found = np.full(n, np.nan)
    for chunk in chunks:
        at = chunk.at - begin
        judged = chunk.scores[IMPORTANCE][: (chunk.accepted or 0) + 1][: n - at]
        found[at : at + len(judged)] = judged
    return found


def _small(models: Models) -> Stack:
    small, large = (_model(engine) for engine in (models.device, models.cloud))
    return Stack(small, min(len(models.tokenizer), small.vocabulary, large.vocabulary))


def _model(engine: Any) -> Any:
    return engine.model


def _tokens(i: int, stack: Stack, words: Any, prompt: tuple[int, ...], record: Record) -> Tokens:
    n = len(record.tokens)
    confidence, top_1, top_5 = judge(_forced(stack, (*prompt, *record.tokens), len(prompt)), record.tokens)
    importance = drafted_importance(record.chunks, len(prompt), n)
    return Tokens(np.full(n, i), confidence, top_1, top_5, content_mask(words, record.tokens), importance)


@torch.inference_mode()
def _forced(stack: Stack, path: tuple[int, ...], first: int) -> torch.Tensor:
    """Logits for path[first:], each behind all that precedes it."""
    depth, fed = len(stack.model.layers), path[:-1]
    hidden = stack.run(stack.embed(fed), [Lot(Slot(stack.model, 0, depth), len(fed))], 0, depth)
    return stack.logits(hidden[first - 1 :])


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(*(np.concatenate([getattr(part, name) for part in parts]) for name in Tokens.__annotations__))


def _drafts(found: Sequence[tuple[int, Chunk]]) -> Drafts:
    chunks = [chunk for _, chunk in found]
    return Drafts(
        np.array([i for i, _ in found], np.int64),
        np.array([mean_score(chunk, "confidence") for chunk in chunks]),
        np.array([mean_score(chunk, IMPORTANCE) for chunk in chunks]),
        np.array([(chunk.accepted or 0) < len(chunk.tokens) for chunk in chunks], np.bool_),
    )


Cell = list[float] | None


def ratio(of: Floats | Flags, among: Floats | Flags, answer: Ints, answers: int) -> Cell:
    """sum(of) / sum(among), by answer; None where nothing is among."""
    parts, wholes = (np.bincount(answer, each.astype(np.float64), answers) for each in (of, among))
    if not wholes.any():
        return None
    value = parts.sum() / wholes.sum()
    return list((value + (parts - value * wholes) / wholes.mean()).tolist())


def auc(scores: Floats, positive: Flags, answer: Ints, answers: int) -> Cell:
    """How often a positive scores above a negative, ties half, by answer; None with one kind only."""
    if positive.all() or not positive.any():
        return None
    beaten = np.where(positive, _below(scores, scores[~positive]), 1 - _below(scores, scores[positive]))
    value = beaten[positive].mean()
    weights = answers / np.where(positive, positive.sum(), (~positive).sum())
    return list((value + np.bincount(answer, weights * (beaten - value), answers)).tolist())


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation, ties at their mean rank; None where one of both never changes."""
    if min(len(np.unique(a)), len(np.unique(b))) < 2:
        return None
    return float(np.corrcoef(_below(a, a), _below(b, b))[0, 1])


def skewness(values: Floats) -> float | None:
    """Third standardised moment: 0 for a symmetrical distribution, 2 for an exponential one."""
    off = values - values.mean() if len(values) else values
    spread = float(np.sqrt(np.mean(off**2))) if len(values) else 0.0
    return float(np.mean((off / spread) ** 3)) if spread else None


def highest(scores: Floats, share: float) -> Flags:
    """The share of all that scores highest; the first of those that are alike."""
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[: ceil(share * len(scores) - 1e-9)]] = True
    return chosen


def _below(scores: Floats, others: Floats) -> Floats:
    """Per score the share of the others that lie below it, ties half."""
    ordered = np.sort(others)
    sides = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    return np.asarray(sides / (2 * len(others)), np.float64)
