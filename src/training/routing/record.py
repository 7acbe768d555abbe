"""Makes trajectories under the current policy, on the real path, and asks both models in each of their states.

Whose token is preferred in a state: CITER's shortcut (token routing, section 2.1), as tables can test it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.deployment.queries import Models, Query
from serving.messages import Call
from serving.outcomes.offline import play
from serving.policy.policy import Policy
from serving.progress import Progress
from serving.workload.metrics import Metric, Rouge1
from serving.workload.prompt import Prompt
from training.routing.states import BY, By, States

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import Forced


def reason(small: int, large: int, truth: int | None) -> By:
    """The small model is preferred if it writes the true token, else the large one if it does. Only if both fail are
    whole continuations compared, which would be one and the same where both write the same token.
    """
    if small == truth:
        return "small"
    if large == truth:
        return "large"
    return "alike" if small == large else "compared"


def truths(text: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """The true token at each position of a text: the reference's, as long as the text is the reference so far."""
    found: list[int | None] = []
    for i in range(len(text)):
        on = len(reference) > i and list(text[:i]) == list(reference[:i])
        found.append(reference[i] if on else None)
    return found


def small_is_better(small: tuple[float, ...], large: tuple[float, ...]) -> bool:
    """By the qualities of both continuations, the first that differs; the small model's is cheaper and wins a tie."""
    return small >= large


Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Trajectory:
    """An answer as the policy wrote it, and the reference that it is measured by."""

    query: Query
    answer: Tokens
    reference: Tokens

    @property
    def path(self) -> Tokens:
        return (*self.query.call.prompt, *self.answer)


@dataclass(frozen=True)
class Fork:
    """A state in which neither model writes a true token, and they differ."""

    trajectory: Trajectory
    at: int
    """How many tokens of the answer come before it."""
    small: int
    large: int

    def calls(self) -> list[Query]:
        """The two questions whose answers are compared; none for a token that ends the answer."""
        return [self._query(side, token) for side, token in (("small", self.small), ("large", self.large))]

    def name(self, side: str) -> str:
        return f"{self.trajectory.query.call.session}.{self.at}.{side}"

    def _query(self, side: str, token: int) -> Query:
        call: Call = self.trajectory.query.call
        prompt = (*call.prompt, *self.trajectory.answer[: self.at], token)
        limit = max(1, call.limit - self.at - 1)
        return replace(self.trajectory.query, call=replace(call, session=self.name(side), prompt=prompt, limit=limit))


@dataclass(frozen=True)
class Recorder:
    """
    Args:
        policy: writes the trajectories, and what comes of either model's token where both fail.
        metrics: what continuations are compared by, the first that differs.
        forks: of one trajectory at most so many states are compared, the first ones.
    """

    models: Models
    policy: Policy
    metrics: tuple[Metric, ...]
    seed: int
    forks: int

    def take(self, queries: Sequence[Query], references: Sequence[Tokens], along: bool, progress: Progress) -> States:
        """The states of one trajectory a query; `along` the references themselves, or as the policy writes."""
        answers = references if along else self._written(queries, progress)
        made = [Trajectory(*each) for each in zip(queries, answers, references, strict=True)]
        rows = [self._states(i, each) for i, each in enumerate(made)]
        self._compare([fork for row in rows for fork in row.forks], rows, progress)
        return _stacked(made, rows)

    def _written(self, queries: Sequence[Query], progress: Progress) -> list[Tokens]:
        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, "trajectories")

        records = play(self.policy, self.models, queries, self.seed, noted)
        return [tuple(records[query.call.session].tokens) for query in queries]

    def _states(self, text: int, trajectory: Trajectory) -> _Rows:
        path, first = trajectory.path, len(trajectory.query.call.prompt)
        hidden, logits = self._small.seen(path, first)
        _, others = self._large.seen(path, first)
        n = len(trajectory.answer)
        small, large = logits[:n].argmax(-1).tolist(), others[:n].argmax(-1).tolist()
        truth = truths(trajectory.answer, trajectory.reference)
        known = [0 if token is None else token for token in truth]
        by = self._limited([reason(*each) for each in zip(small, large, truth, strict=True)])
        odds = [_odds(each[:n], known, truth) for each in (logits, others)]
        forks = [Fork(trajectory, at, small[at], large[at]) for at in range(n) if by[at] == "compared"]
        return _Rows(text, hidden[:n].float().cpu().numpy(), by, truth, odds[0], odds[1], forks)

    def _limited(self, by: list[By]) -> list[By]:
        """The same, with as many comparisons as may be made."""
        compared = [at for at, why in enumerate(by) if why == "compared"]
        unasked = set(compared[self.forks :])
        return ["unasked" if at in unasked else why for at, why in enumerate(by)]

    def _compare(self, forks: Sequence[Fork], rows: Sequence[_Rows], progress: Progress) -> None:
        """Continues both ways from each fork, and notes where the large model's is better."""
        ends = {end for fork in forks for end in fork.trajectory.query.call.ends}
        calls = [call for fork in forks for call in fork.calls() if call.call.prompt[-1] not in ends]

        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, "continuations compared")

        records = play(self.policy, self.models, calls, self.seed, noted) if calls else {}
        written = {name: tuple(record.tokens) for name, record in records.items()}
        number = {row.forks[0].trajectory.query.call.session: row for row in rows if row.forks}
        for fork in forks:
            small, large = (self._quality(fork, side, written) for side in ("small", "large"))
            if not small_is_better(small, large):
                number[fork.trajectory.query.call.session].large_won.add(fork.at)

    def _quality(self, fork: Fork, side: str, written: Mapping[str, Tokens]) -> tuple[float, ...]:
        token = fork.small if side == "small" else fork.large
        text = (*fork.trajectory.answer[: fork.at], token, *written.get(fork.name(side), ()))
        prompt: Prompt = fork.trajectory.query.prompt
        answer = prompt.answered(self.models.tokenizer.decode(text))
        found = [metric.score(answer, prompt) for metric in self.metrics]
        return (*found, Rouge1().score(answer, prompt)) if any(prompt.references) else tuple(found)

    @cached_property
    def _small(self) -> Forced:
        return _forced(self.models.device, self.models)

    @cached_property
    def _large(self) -> Forced:
        return _forced(self.models.cloud, self.models)


def _forced(engine: Any, models: Models) -> Forced:
    from serving.outcomes.teacher_forcing import Forced

    return Forced(engine.model, min(len(models.tokenizer), engine.model.vocabulary))


@dataclass
class _Rows:
    """The states of one text."""

    text: int
    hidden: Any
    by: list[By]
    truth: list[int | None]
    small_odds: list[float]
    large_odds: list[float]
    forks: list[Fork]

    def __post_init__(self) -> None:
        self.large_won: set[int] = set()

    @property
    def small_preferred(self) -> list[bool]:
        return [by != "large" and at not in self.large_won for at, by in enumerate(self.by)]


def _odds(logits: Any, tokens: list[int], truth: Sequence[int | None]) -> list[float]:
    import torch

    found = logits.log_softmax(-1).gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    return [0.0 if token is None else value for value, token in zip(found, truth, strict=True)]


def _stacked(made: Sequence[Trajectory], rows: Sequence[_Rows]) -> States:
    paths = [each.path for each in made]
    return States(
        hidden=np.concatenate([row.hidden for row in rows]).astype(np.float32),
        small_preferred=np.array([each for row in rows for each in row.small_preferred], np.bool_),
        by=np.array([BY.index(each) for row in rows for each in row.by], np.uint8),
        truth=np.array([-1 if each is None else each for row in rows for each in row.truth], np.int32),
        small_odds=np.array([each for row in rows for each in row.small_odds], np.float32),
        large_odds=np.array([each for row in rows for each in row.large_odds], np.float32),
        text=np.array([row.text for row in rows for _ in row.by], np.int32),
        tokens=np.array([token for path in paths for token in path], np.int32),
        ends=np.cumsum([len(path) for path in paths]).astype(np.int64),
        prompts=np.array([len(each.query.call.prompt) for each in made], np.int64),
        names=tuple(each.query.prompt.id for each in made),
    )
