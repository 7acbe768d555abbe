"""The large model's greedy answers, token by token, as the small model predicts them, and the verified drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from training.synera.thresholds import mean_score, profiling_policy, readings

if TYPE_CHECKING:
    from serving.metrics.recorder import SessionRecord

TOP_K = 5


@dataclass(frozen=True)
class AlignedTokens:
    """The answers' tokens, one entry each; the text before each token is the large model's."""

    answer: Ints
    """Index of the answer, from 0."""
    confidence: Floats
    """Probability of the small model's most likely token at this position."""
    top_1: Flags
    """True if that token is the large model's."""
    top_5: Flags
    """True if the large model's token is among the small model's five most likely ones."""
    content: Flags
    """True if the large model's token belongs to a word that is not from a template."""
    importance: Floats
    """Of the draft verified at this position; NaN if there is none, as behind a fully accepted draft."""


@dataclass(frozen=True)
class VerifiedDrafts:
    """The verified drafts, one entry each: means over their tokens, as offloading reads them (Synera, section 4.2)."""

    answer: Ints
    confidence: Floats
    importance: Floats
    has_rejection: Flags
    """True if not all of its tokens were accepted."""
    importance_readings: Mapping[str, Floats] = field(default_factory=dict)
    """Every reading of importance, by the name of the score."""
    is_full: Flags | None = None
    """True if it has as many tokens as the longest; None: not known."""
    accepted: Ints | None = None
    """Of its tokens; None: not known."""


@dataclass(frozen=True)
class Alignment:
    """Tokens and drafts of the answers, with each answer's task ("" if the data set has no tasks)."""

    tasks: tuple[str, ...]
    tokens: AlignedTokens
    drafts: VerifiedDrafts

    @property
    def num_answers(self) -> int:
        return len(self.tasks)


def align(models: LoadedModels, queries: Sequence[Query], gamma: int, seed: int, progress: Progress) -> Alignment:
    """Records the large model's answers with every draft of `gamma` tokens verified, then runs each answer through the
    small model once (teacher forcing).
    """
    records = run_untimed(profiling_policy(WindowDraft(gamma), NoEarlyExit()), models, queries, seed, progress)
    answers = [(query.request.prompt, records[query.request.session]) for query in queries]
    runner, tokenizer = _draft_model_runner(models), models.tokenizer.hf
    tokens = [_aligned_tokens(i, runner, tokenizer, prompt, record) for i, (prompt, record) in enumerate(answers)]
    drafts = [(i, decision) for i, (_, record) in enumerate(answers) for decision in record.draft_decisions]
    return Alignment(tuple(query.prompt.task for query in queries), _concatenated(tokens), _verified_drafts(drafts))


def top_k_hits(logits: torch.Tensor, target_tokens: Sequence[int]) -> tuple[Floats, Flags, Flags]:
    """Confidence, top-1 hits and top-5 hits of logits of shape (tokens, vocabulary) against the target tokens."""
    top = logits.softmax(-1).topk(min(TOP_K, logits.shape[-1]))
    hits: Flags = (top.indices.cpu() == torch.tensor(target_tokens)[:, None]).numpy()
    return top.values[:, 0].double().cpu().numpy(), hits[:, 0], np.any(hits, axis=1)


def drafted_importance(decisions: Sequence[DraftDecision], prompt_len: int, answer_len: int) -> Floats:
    """Importance (answer_len,) of the drafts verified at an answer's positions, behind `prompt_len` prompt tokens.

    Drafted tokens behind the first rejected one have no position in the answer.
    """
    found = np.full(answer_len, np.nan)
    for decision in decisions:
        begin = decision.position - prompt_len
        verified = decision.scores[IMPORTANCE][: (decision.accepted or 0) + 1][: answer_len - begin]
        found[begin : begin + len(verified)] = verified
    return found


def _draft_model_runner(models: LoadedModels) -> ModelRunner:
    small, large = (_model(engine) for engine in (models.device, models.cloud))
    return ModelRunner(small, min(len(models.tokenizer), small.vocab_size, large.vocab_size))


def _model(engine: Any) -> Any:
    return engine.model


def _aligned_tokens(
    answer: int, runner: ModelRunner, tokenizer: Any, prompt: tuple[int, ...], record: "SessionRecord"
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
    """Logits that predict token_ids[first:]."""
    depth, fed = len(runner.model.layers), token_ids[:-1]
    hidden = runner.run(runner.embed(fed), [RunnerInput(SequenceCache(runner.model, 0, depth), len(fed))], 0, depth)
    return runner.logits(hidden[first - 1 :])


def _concatenated(parts: Sequence[AlignedTokens]) -> AlignedTokens:
    return AlignedTokens(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in AlignedTokens.__annotations__)
    )


def _verified_drafts(found: Sequence[tuple[int, DraftDecision]]) -> VerifiedDrafts:
    chunks = [chunk for _, chunk in found]
    longest = max((len(chunk.tokens) for chunk in chunks), default=0)
    return VerifiedDrafts(
        np.array([i for i, _ in found], np.int64),
        np.array([mean_score(chunk, "confidence") for chunk in chunks]),
        np.array([mean_score(chunk, IMPORTANCE) for chunk in chunks]),
        np.array([(chunk.accepted or 0) < len(chunk.tokens) for chunk in chunks], np.bool_),
        {name: np.array([mean_score(chunk, name) for chunk in chunks]) for name in readings(chunks)},
        np.array([len(chunk.tokens) == longest for chunk in chunks], np.bool_),
        np.array([chunk.accepted or 0 for chunk in chunks], np.int64),
    )
