"""Makes trajectories under the current policy, on the real path, and asks both models in each of their states.

Whose token is preferred in a state: CITER's shortcut (token routing, section 2.1), as tables can test it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.deployment.queries import LoadedModels, Query
from serving.messages import GenerationRequest
from serving.outcomes.offline import run_untimed
from serving.policy.policy import Policy
from serving.progress import Progress
from serving.workload.metrics import Metric, Rouge1
from serving.workload.prompt import Prompt
from training.routing.states import PREFERENCE_REASONS, PreferenceReason, RoutingStates

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import TeacherForcedModel


def preference_reason(small: int, large: int, reference_token: int | None) -> PreferenceReason:
    """The small model is preferred if it writes the true token, else the large one if it does. Only if both fail are
    whole continuations compared, which would be one and the same where both write the same token.
    """
    if small == reference_token:
        return "small"
    if large == reference_token:
        return "large"
    return "alike" if small == large else "compared"


def reference_tokens(text: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """The true token at each position of a text: the reference's, as long as the text is the reference so far."""
    found: list[int | None] = []
    for i in range(len(text)):
        on = len(reference) > i and list(text[:i]) == list(reference[:i])
        found.append(reference[i] if on else None)
    return found


def prefers_small(small: tuple[float, ...], large: tuple[float, ...]) -> bool:
    """By the qualities of both continuations, the first that differs; the small model's is cheaper and wins a tie."""
    return small >= large


TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class Trajectory:
    """An answer as the policy wrote it, and the reference that it is measured by."""

    query: Query
    answer: TokenIds
    reference: TokenIds

    @property
    def token_ids(self) -> TokenIds:
        return (*self.query.request.prompt, *self.answer)


@dataclass(frozen=True)
class Disagreement:
    """A state in which neither model writes a true token, and they differ."""

    trajectory: Trajectory
    position: int
    """How many tokens of the answer come before it."""
    small: int
    large: int

    def continuation_queries(self) -> list[Query]:
        """The two questions whose answers are compared; none for a token that ends the answer."""
        return [self._continuation_query(side, token) for side, token in (("small", self.small), ("large", self.large))]

    def session_id(self, side: str) -> str:
        return f"{self.trajectory.query.request.session}.{self.position}.{side}"

    def _continuation_query(self, side: str, token: int) -> Query:
        call: GenerationRequest = self.trajectory.query.request
        prompt = (*call.prompt, *self.trajectory.answer[: self.position], token)
        limit = max(1, call.max_new_tokens - self.position - 1)
        return replace(
            self.trajectory.query,
            request=replace(call, session=self.session_id(side), prompt=prompt, max_new_tokens=limit),
        )


@dataclass(frozen=True)
class TrajectoryRecorder:
    """
    Args:
        policy: writes the trajectories, and what comes of either model's token where both fail.
        metrics: what continuations are compared by, the first that differs.
        forks: of one trajectory at most so many states are compared, the first ones.
    """

    models: LoadedModels
    policy: Policy
    metrics: tuple[Metric, ...]
    seed: int
    max_comparisons: int

    def record(
        self, queries: Sequence[Query], references: Sequence[TokenIds], follow_references: bool, progress: Progress
    ) -> RoutingStates:
        """The states of one trajectory a query; `follow_references` the references themselves, or as the policy writes."""
        answers = references if follow_references else self._generate(queries, progress)
        made = [Trajectory(*each) for each in zip(queries, answers, references, strict=True)]
        rows = [self._states(i, each) for i, each in enumerate(made)]
        self._compare_continuations([fork for row in rows for fork in row.disagreements], rows, progress)
        return _concatenated(made, rows)

    def _generate(self, queries: Sequence[Query], progress: Progress) -> list[TokenIds]:
        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, "trajectories")

        records = run_untimed(self.policy, self.models, queries, self.seed, noted)
        return [tuple(records[query.request.session].tokens) for query in queries]

    def _states(self, text: int, trajectory: Trajectory) -> _TextStates:
        path, first = trajectory.token_ids, len(trajectory.query.request.prompt)
        hidden, logits = self._small_model.hidden_and_logits(path, first)
        _, others = self._large_model.hidden_and_logits(path, first)
        n = len(trajectory.answer)
        small, large = logits[:n].argmax(-1).tolist(), others[:n].argmax(-1).tolist()
        truth = reference_tokens(trajectory.answer, trajectory.reference)
        known = [0 if token is None else token for token in truth]
        by = self._limit_comparisons([preference_reason(*each) for each in zip(small, large, truth, strict=True)])
        odds = [_token_logprobs(each[:n], known, truth) for each in (logits, others)]
        forks = [Disagreement(trajectory, at, small[at], large[at]) for at in range(n) if by[at] == "compared"]
        return _TextStates(text, hidden[:n].float().cpu().numpy(), by, truth, odds[0], odds[1], forks)

    def _limit_comparisons(self, reasons: list[PreferenceReason]) -> list[PreferenceReason]:
        """The same, with as many comparisons as may be made."""
        compared = [at for at, why in enumerate(reasons) if why == "compared"]
        unasked = set(compared[self.max_comparisons :])
        return ["unasked" if at in unasked else why for at, why in enumerate(reasons)]

    def _compare_continuations(
        self, disagreements: Sequence[Disagreement], rows: Sequence[_TextStates], progress: Progress
    ) -> None:
        """Continues both ways from each fork, and notes where the large model's is better."""
        ends = {end for fork in disagreements for end in fork.trajectory.query.request.stop_tokens}
        calls = [
            call
            for fork in disagreements
            for call in fork.continuation_queries()
            if call.request.prompt[-1] not in ends
        ]

        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, "continuations compared")

        records = run_untimed(self.policy, self.models, calls, self.seed, noted) if calls else {}
        written = {name: tuple(record.tokens) for name, record in records.items()}
        number = {row.disagreements[0].trajectory.query.request.session: row for row in rows if row.disagreements}
        for fork in disagreements:
            small, large = (self._quality(fork, side, written) for side in ("small", "large"))
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
        found = [metric.score(answer, prompt) for metric in self.metrics]
        return (*found, Rouge1().score(answer, prompt)) if any(prompt.references) else tuple(found)

    @cached_property
    def _small_model(self) -> TeacherForcedModel:
        return _teacher_forcing(self.models.device, self.models)

    @cached_property
    def _large_model(self) -> TeacherForcedModel:
        return _teacher_forcing(self.models.cloud, self.models)


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
        return [by != "large" and at not in self.large_preferred for at, by in enumerate(self.reasons)]


def _token_logprobs(logits: Any, tokens: list[int], reference_tokens: Sequence[int | None]) -> list[float]:
    import torch

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
