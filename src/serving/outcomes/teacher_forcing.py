"""What models would write at each position of a text that is given: teacher forcing.

Wrong guesses on which a policy drafted ahead, so that a trace of it can say what the drafter wrote there.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from serving.core.scores import LOGIT_SCORES, NO_SCORERS, Scorers
from serving.engines.torch.draft import DraftBuilder, EarlyExitDecoder, draft_tokens
from serving.engines.torch.draft_heads import MedusaProposer
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.executor import Engine
from serving.hardware.latency import ForwardLoad
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, EarlyExitRule, ForwardWork, Outcome
from serving.outcomes.lookup import TraceLookup
from serving.outcomes.trace import RecordedSession


class Continuation(NamedTuple):
    """What the drafter writes on from one position."""

    drafted: DraftOutcome
    exit_layers: list[int]
    """After how many layers each token was read off."""
    attention: list[float]
    """What the row that wrote the first token pays to itself, then per fed-back token what it pays to tokens 0..i."""


class TeacherForcedModel:
    """One model under teacher forcing.

    Args:
        model: from `open_model`.
        vocabulary: how many rows of its head are real tokens.
        rule: where it leaves early when it drafts, if it does.
        scorers: trained scores of its drafts, beside the others.
    """

    def __init__(
        self,
        model: DecomposedModel,
        vocabulary: int,
        exit_rule: EarlyExitRule | None = None,
        scorers: Scorers = NO_SCORERS,
    ) -> None:
        self._model, self._runner, self._tensor_store, self._scorers = (
            model,
            ModelRunner(model, vocabulary),
            TensorStore(0),
            scorers,
        )
        self._num_layers, self._exit_rule, self._reading = (
            len(model.layers),
            exit_rule,
            EarlyExitDecoder(self._runner, exit_rule),
        )

    @torch.inference_mode()
    def greedy_tokens(self, token_ids: Sequence[int], first: int, max_tokens: int = 256) -> list[int]:
        """The greedy token after path[:p] for p = first..len(path), at most `max_tokens` rows a pass."""
        slot, found = SequenceCache(self._model, 0, self._num_layers), []
        for at in range(0, len(token_ids), max_tokens):
            part = token_ids[at : at + max_tokens]
            hidden = self._runner.run(self._runner.embed(part), [RunnerInput(slot, len(part))], 0, self._num_layers)
            if at + len(part) >= first:
                hidden = hidden[max(0, first - 1 - at) :]
                found += self._runner.logits(hidden).argmax(-1).tolist()
        return found

    @torch.inference_mode()
    def hidden_and_logits(self, token_ids: Sequence[int], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head looks at after path[:p] for p = first..len(path), and its logits."""
        slot = SequenceCache(self._model, 0, self._num_layers)
        hidden = self._runner.run(
            self._runner.embed(token_ids), [RunnerInput(slot, len(token_ids))], 0, self._num_layers
        )
        normed = self._runner.apply_norm(hidden[first - 1 :])
        return normed, self._runner.apply_lm_head(normed)

    @torch.inference_mode()
    def proposals(self, token_ids: Sequence[int], first: int, proposer: MedusaProposer) -> list[tuple[int, ...]]:
        """What the heads propose beside each of those choices."""
        return [proposer.propose(row)[0] for row in self.hidden_and_logits(token_ids, first)[0]]

    @torch.inference_mode()
    def continuations(
        self, token_ids: Sequence[int], first: int, max_draft_len: int, stop_tokens: tuple[int, ...]
    ) -> list[Continuation]:
        """The greedy continuation of path[:p], `max_draft_len` tokens deep, for p = first..len(path)."""
        slot = SequenceCache(self._model, 0, self._num_layers)
        found = []
        for at in range(first, len(token_ids) + 1):
            slot.truncate(0 if at == first else at - 1, "recorded")
            feed, probes = tuple(token_ids[slot.length : at]), (*LOGIT_SCORES, *self._scorers)
            work = DraftWork(
                "", slot.length, feed, DraftStopRule(max_draft_len), stop_tokens, probes, early_exit=self._exit_rule
            )
            found.append(self._continue(work, slot))
        return found

    def _continue(self, work: DraftWork, slot: SequenceCache) -> Continuation:
        """As `serving.engines.torch.draft` writes, but the attention of every pass is kept."""
        chunk, seen = (
            DraftBuilder(work, self._tensor_store, self._scorers),
            self._reading.importance_collector(frozenset(range(self._num_layers))),
        )
        draft_tokens(chunk, self._reading, self._runner, slot, seen)
        drafted = chunk.build(slot.length, None)
        depths = [round(share * self._num_layers) for share in drafted.exit_depths or (1.0,) * len(drafted.tokens)]
        return Continuation(drafted, depths, _attention(seen.passes))


def _attention(passes: Sequence[torch.Tensor]) -> list[float]:
    found: list[float] = [float(passes[0][-1, -1])]
    for i, seen in enumerate(passes[1:]):
        own: list[float] = seen[-1, -(i + 1) :].tolist()
        found += [0.0] * (i + 1 - len(own)) + own  # a sliding window shows fewer columns
    return found


LookaheadBranch = tuple[int, int, int]
"""(base, length, token), see `Recorded.lookahead_branches`."""


class LookaheadRecorder:
    """A drafter's engine, and by session the texts behind which it drafted ahead."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cached: dict[str, list[int]] = defaultdict(list)
        self.lookahead_texts: dict[str, list[tuple[int, ...]]] = defaultdict(list)

    def execute(self, work: DraftWork | ForwardWork) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        outcome, loads = self._engine.execute(work)
        if isinstance(work, DraftWork) and isinstance(outcome, DraftOutcome):
            cached = self._cached[work.session]
            del cached[work.start :]
            self.lookahead_texts[work.session] += [(*cached, *branch) for branch in work.branches]
            cached += () if work.branches else (*work.input_tokens, *outcome.tokens)
        return outcome, loads

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)


def lookahead_branches(
    lookup: TraceLookup, session: RecordedSession, texts: Sequence[tuple[int, ...]]
) -> dict[LookaheadBranch, tuple[int, ...]]:
    """Where these texts leave what was recorded of their session, and each text up to and with the token that does."""
    found: dict[LookaheadBranch, tuple[int, ...]] = {}
    for text in texts:
        place, off = lookup.find_divergence(session, (0, 0), text)
        if off is not None:
            found.setdefault((*place, text[off]), text[: off + 1])
    return found
