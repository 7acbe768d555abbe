"""Records trajectories under the current policy, with the token of each model in every state.

CITER's shortcut (token routing, section 2.1) says which model's token is preferred in a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.deployment.queries import LoadedModels, Query
from serving.messages import GenerationRequest, TokenIds
from serving.outcomes.kept_sessions import kept_in
from serving.outcomes.offline import CONCURRENT_SESSIONS, run_untimed
from serving.policy.policy import Policy
from serving.policy.slots.kv_cache import SharedPrefixCaching
from serving.progress import Progress, reported
from serving.workload.metrics import Metric, Rouge1, checked_score
from serving.workload.prompt import Prompt
from training.fitting.held_out import with_note
from training.routing.states import PREFERENCE_REASONS, PreferenceReason, RoutingStates

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import TeacherForcedModel


def preference_reason(small: int, large: int, reference_token: int | None) -> PreferenceReason:
    """The small model is preferred if it writes the true token, else the large model if it does.

    If both fail, their continuations are compared, unless both write the same token.
    """
    if small == reference_token:
        return "small"
    if large == reference_token:
        return "large"
    return "alike" if small == large else "compared"


def reference_tokens(text: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """The true token at each position: the reference's while the text equals the reference so far, else None."""
    found: list[int | None] = []
    for i in range(len(text)):
        follows = len(reference) > i and list(text[:i]) == list(reference[:i])
        found.append(reference[i] if follows else None)
    return found


def prefers_small(small: tuple[float, ...], large: tuple[float, ...]) -> bool:
    """Compares the qualities of both continuations by the first that differs; a tie goes to the cheaper small model."""
    return small >= large


@dataclass(frozen=True)
class Trajectory:
    """An answer that the policy wrote, and its reference."""

    query: Query
    answer: TokenIds
    reference: TokenIds

    @property
    def token_ids(self) -> TokenIds:
        return (*self.query.request.prompt, *self.answer)


@dataclass(frozen=True)
class Disagreement:
    """A state in which neither model writes the true token, and their tokens differ."""

    trajectory: Trajectory
    position: int
    """Tokens of the answer before this state."""
    small: int
    large: int

    @property
    def remaining_budget(self) -> int:
        """Tokens that the answer may have behind the one in which the models differ."""
        return self.trajectory.query.request.max_new_tokens - self.position - 1

    def continuation_queries(self) -> list[Query]:
        """The two queries whose answers are compared; `remaining_budget` must be above 0."""
        return [self._continuation_query(side, token) for side, token in (("small", self.small), ("large", self.large))]

    def session_id(self, side: str) -> str:
        return f"{self.trajectory.query.request.session}.{self.position}.{side}"

    def _continuation_query(self, side: str, token: int) -> Query:
        call: GenerationRequest = self.trajectory.query.request
        prompt = (*call.prompt, *self.trajectory.answer[: self.position], token)
        continued = replace(call, session=self.session_id(side), prompt=prompt, max_new_tokens=self.remaining_budget)
        return replace(self.trajectory.query, request=continued)


@dataclass(frozen=True)
class TrajectoryRecorder:
    """Records the states of trajectories.

    Args:
        policy: writes the trajectories and the continuations that are compared.
        metrics: continuations are compared by the first metric that differs.
        max_comparisons: only the first states of a trajectory are compared, at most this many.
        work: the folder of what an interrupted recording goes on from: finished trajectories and continuations.
    """

    models: LoadedModels
    policy: Policy
    metrics: tuple[Metric, ...]
    seed: int
    max_comparisons: int
    work: Path | None = None

    def record(
        self, queries: Sequence[Query], references: Sequence[TokenIds], follow_references: bool, progress: Progress
    ) -> RoutingStates:
        """The states of one trajectory per query: its reference if `follow_references`, else the policy's answer."""
        answers = references if follow_references else self._generate(queries, progress)
        trajectories = [Trajectory(*each) for each in zip(queries, answers, references, strict=True)]
        steps = reported(trajectories, with_note(progress, "states of trajectories"))
        rows = [self._states(i, each) for i, each in enumerate(steps)]
        self._compare_continuations([each for row in rows for each in row.disagreements], rows, progress)
        return _concatenated(trajectories, rows)

    def _generate(self, queries: Sequence[Query], progress: Progress) -> list[TokenIds]:
        noted, kept = with_note(progress, "trajectories"), kept_in(self.work, "trajectories")
        records = run_untimed(self.policy, self.models, queries, self.seed, noted, kept=kept)
        return [tuple(records[query.request.session].tokens) for query in queries]

    def _states(self, text: int, trajectory: Trajectory) -> _TextStates:
        token_ids, first = trajectory.token_ids, len(trajectory.query.request.prompt)
        hidden, small_logits = self._small_model.hidden_and_logits(token_ids, first)
        _, large_logits = self._large_model.hidden_and_logits(token_ids, first)
        n = len(trajectory.answer)
        small, large = small_logits[:n].argmax(-1).tolist(), large_logits[:n].argmax(-1).tolist()
        references = reference_tokens(trajectory.answer, trajectory.reference)
        reasons = self._limit_comparisons(
            [preference_reason(*each) for each in zip(small, large, references, strict=True)]
        )
        return _TextStates(
            text=text,
            hidden=hidden[:n].float().cpu().numpy(),
            reasons=reasons,
            reference_tokens=references,
            small_logprobs=_token_logprobs(small_logits[:n], references),
            large_logprobs=_token_logprobs(large_logits[:n], references),
            disagreements=[
                Disagreement(trajectory, at, small[at], large[at]) for at in range(n) if reasons[at] == "compared"
            ],
        )

    def _limit_comparisons(self, reasons: list[PreferenceReason]) -> list[PreferenceReason]:
        """The reasons with at most `max_comparisons` times "compared"; the rest becomes "unasked"."""
        compared = [at for at, why in enumerate(reasons) if why == "compared"]
        unasked = set(compared[self.max_comparisons :])
        return ["unasked" if at in unasked else why for at, why in enumerate(reasons)]

    def _compare_continuations(
        self, disagreements: Sequence[Disagreement], rows: Sequence[_TextStates], progress: Progress
    ) -> None:
        """Continues every disagreement with both tokens, and records where the large model's is better."""
        calls = _unended_continuations(disagreements)
        noted = with_note(progress, "continuations compared")
        policy = replace(self.policy, kv_cache=SharedPrefixCaching(device_idle_sessions=1))
        kept = kept_in(self.work, "continuations")
        records = run_untimed(policy, self.models, calls, self.seed, noted, kept=kept) if calls else {}
        continuations = {name: tuple(record.tokens) for name, record in records.items()}
        number = {row.disagreements[0].trajectory.query.request.session: row for row in rows if row.disagreements}
        for fork in disagreements:
            small, large = (self._quality(fork, side, continuations) for side in ("small", "large"))
            if not prefers_small(small, large):
                number[fork.trajectory.query.request.session].large_preferred.add(fork.position)

    def _quality(
        self, disagreement: Disagreement, side: str, continuations: Mapping[str, TokenIds]
    ) -> tuple[float, ...]:
        token = disagreement.small if side == "small" else disagreement.large
        text = (
            *disagreement.trajectory.answer[: disagreement.position],
            token,
            *continuations.get(disagreement.session_id(side), ()),
        )
        prompt: Prompt = disagreement.trajectory.query.prompt
        answer = prompt.extract_answer(self.models.tokenizer.decode(text))
        found = [checked_score(metric, answer, prompt) for metric in self.metrics]
        return (*found, Rouge1().score(answer, prompt)) if any(prompt.references) else tuple(found)

    @cached_property
    def _small_model(self) -> TeacherForcedModel:
        return _teacher_forcing(self.models.device, self.models)

    @cached_property
    def _large_model(self) -> TeacherForcedModel:
        return _teacher_forcing(self.models.cloud, self.models)


def _unended_continuations(disagreements: Sequence[Disagreement]) -> list[Query]:
    """The queries of all continuations that can go on: their first token does not end the text, and the answer may have
    another.

    `run_untimed` deals queries to its devices in turn, so in this order both of a state run on one device, where the
    second continues the cache of what both share, up to the first continuation that is left out and in whole groups.
    """
    pairs = [fork.continuation_queries() for fork in disagreements if fork.remaining_budget]
    groups = [pairs[first : first + CONCURRENT_SESSIONS] for first in range(0, len(pairs), CONCURRENT_SESSIONS)]
    calls = [pair[side] for group in groups for side in (0, 1) for pair in group]
    return [call for call in calls if call.request.prompt[-1] not in call.request.stop_tokens]


def _teacher_forcing(engine: Any, models: LoadedModels) -> TeacherForcedModel:
    from serving.outcomes.teacher_forcing import TeacherForcedModel

    return TeacherForcedModel(engine.model, min(len(models.tokenizer), engine.model.vocab_size))


@dataclass
class _TextStates:
    """The states of one text."""

    text: int
    hidden: Any
    reasons: list[PreferenceReason]
    reference_tokens: list[int | None]
    small_logprobs: list[float]
    large_logprobs: list[float]
    disagreements: list[Disagreement]

    def __post_init__(self) -> None:
        self.large_preferred: set[int] = set()

    @property
    def small_preferred(self) -> list[bool]:
        return [reason != "large" and at not in self.large_preferred for at, reason in enumerate(self.reasons)]


def _token_logprobs(logits: Any, reference_tokens: Sequence[int | None]) -> list[float]:
    """The reference tokens' log-probabilities; 0 where there is none."""
    import torch

    tokens = [token or 0 for token in reference_tokens]
    found = logits.log_softmax(-1).gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    return [0.0 if token is None else value for value, token in zip(found, reference_tokens, strict=True)]


def _concatenated(trajectories: Sequence[Trajectory], rows: Sequence[_TextStates]) -> RoutingStates:
    paths = [each.token_ids for each in trajectories]
    return RoutingStates(
        hidden=np.concatenate([row.hidden for row in rows]).astype(np.float32),
        small_preferred=np.array([each for row in rows for each in row.small_preferred], np.bool_),
        reason=np.array([PREFERENCE_REASONS.index(each) for row in rows for each in row.reasons], np.uint8),
        reference_token=np.array(
            [-1 if each is None else each for row in rows for each in row.reference_tokens], np.int32
        ),
        small_logprobs=np.array([each for row in rows for each in row.small_logprobs], np.float32),
        large_logprobs=np.array([each for row in rows for each in row.large_logprobs], np.float32),
        text_index=np.array([row.text for row in rows for _ in row.reasons], np.int32),
        tokens=np.array([token for path in paths for token in path], np.int32),
        text_ends=np.cumsum([len(path) for path in paths]).astype(np.int64),
        prompt_lens=np.array([len(each.query.request.prompt) for each in trajectories], np.int64),
        prompt_ids=tuple(each.query.prompt.id for each in trajectories),
    )
