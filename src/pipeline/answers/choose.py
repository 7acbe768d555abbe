"""Chooses a policy, with its options, that meets requirements at the least cost.

1. Every policy as its file has it is simulated with few requests; a lossy one is left out where text must be the cloud
   model's own.
2. Further candidates are drawn, a policy first and then that policy's options (`sampler.py`), in batches, so that the
   draws do not depend on which cell ends first.
3. The better ones are simulated with more requests, the best with all, under several seeds.
4. The winner and every policy's default are served once on other prompts and seeds: what the answer claimed, and what
   it keeps.
5. What the answer rests on is varied: load, round trip, acceptance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.answers.candidates import Candidate, CandidateSpace
from pipeline.answers.cell import CellResult
from pipeline.answers.evaluation import Evaluator
from pipeline.answers.ranking import is_measured, promoted, ranked
from pipeline.answers.requirements import Requirements
from pipeline.answers.rows import Row, serve_rows
from pipeline.answers.sampler import CandidateSampler
from pipeline.answers.words import check_each_once, joined, kept_by_none, key_of, without
from pipeline.errors import ConfigError, UserError
from pipeline.report.plan import PlannedStage
from serving.metrics import definitions

RUNTIME = ("runtime", "runtime/outcomes")
MAX_VARIED = 5
"""Policies that are compared at each value of what is varied."""


class NoAnswerError(UserError):
    """No candidate could be served."""


@dataclass(frozen=True)
class Effort:
    """How much a search does: requests of its three rungs, candidates drawn and kept, seeds of the last rung."""

    trials: int
    requests: tuple[int, int, int]
    keep: tuple[int, int]
    seeds: tuple[int, ...] = (0,)
    batch: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.requests[0] <= self.requests[1] <= self.requests[2]:
            raise ValueError(f"effort.requests is {self.requests}; give three numbers that do not fall: 24, 96, 400")
        if not (self.trials >= 0 and min(self.keep) >= 1 and self.seeds and self.batch >= 1):
            raise ValueError("effort: trials is 0 or more, keep and batch are 1 or more, and there is a seed")
        check_each_once("effort.seeds", self.seeds)


@dataclass(frozen=True)
class Question:
    """What is searched for; words are those of a command line.

    `base` are the words of every cell, before the command's own; `search` and `held_out` those of the requests that
    the search and the last check see; `text` those of a run on text, which measures quality.
    """

    require: Requirements
    policies: Mapping[str, Any]
    """The options of each policy by its name, in Hydra's syntax of sweeps; null: as its file has it."""
    objective: tuple[str, ...]
    base: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    sensitivity: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """What the answer rests on -> the words of each of its values."""
    own_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further words of single policies."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.objective:
            raise ValueError("choose.objective is empty; name one metric at least, such as cost/usd_per_million_tokens")
        for name in self.objective:
            metric = definitions.find(name)
            if metric is None or metric.better != "lower":
                raise ValueError(
                    f"choose.objective has {name!r}; name metrics that are better when lower, as `python -m pipeline "
                    "show metrics` lists them"
                )

    def check_devices(self, words: Sequence[str]) -> None:
        """Raises ConfigError if one of the words, or of a policy's own, asks for fewer devices than must be served."""
        least = self.require.devices_min
        for word in (*words, *(word for name in self.policies for word in self.own_words.get(name, ()))):
            count = word.partition("=")[2]
            if least and key_of(word) == "workload.devices" and not (count.isdigit() and int(count) >= least):
                raise ConfigError(
                    f"{word} contradicts require.devices_min={least}: cells would have other devices than the "
                    f"answer promises. Leave workload.devices out, or give {least} or more."
                )

    def words(self, candidate: Candidate, *parts: Sequence[str]) -> tuple[str, ...]:
        """The words of a candidate's cell."""
        load = [f"workload.devices={self.require.devices_min}"] if self.require.devices_min else []
        return joined(self.base, load, self.own_words.get(candidate.policy, ()), *parts, candidate.words)

    def words_beside(self, candidate: Candidate, words: Sequence[str]) -> list[str]:
        """The words that serve a candidate's policy file as its cells were served, under any runtime: `words` of the
        command, those of the load, and the policy's own that its file does not keep.
        """
        found = self.words(candidate, words)
        return without([one for one in found if one not in candidate.words], (*RUNTIME, "workload.profiling"))


@dataclass(frozen=True)
class Answer:
    """The rows of a search, best first, and what is known of the best."""

    question: Question
    rows: tuple[Row, ...]
    """The last rung's."""
    tried: tuple[Row, ...]
    """All rows of the first rung."""
    claimed: Row
    held_out: tuple[Row, ...]
    """The best row, the next ones and every policy's default, on held-out requests; best first."""
    takeovers: Mapping[str, tuple[tuple[str, tuple[Row, ...]], ...]]
    """What is varied -> (value, rows best first)."""
    left_out: Mapping[str, str]
    """Policies that could not be served, or are lossy, with the reason."""
    failed: Mapping[str, int]
    """Reasons of candidates that could not be served, with their numbers."""
    not_varied: Mapping[str, str]
    """What was not varied, with the reason."""

    @property
    def chosen_held_out(self) -> Row | None:
        """The chosen row on held-out requests; None if it could not be served on them."""
        return next((row for row in self.held_out if row.candidate == self.claimed.candidate), None)


@dataclass
class Search:
    """A search for the answer to `question`."""

    question: Question
    effort: Effort
    evaluator: Evaluator
    words: tuple[str, ...] = ()
    """The command's own words, of every cell."""
    not_varied: Mapping[str, str] = field(default_factory=dict)
    """What is not varied here, with the reason."""
    left_out: dict[str, str] = field(default_factory=dict, init=False)
    failed: dict[str, int] = field(default_factory=dict, init=False)
    quality: dict[Candidate | None, Mapping[str, float] | None] = field(default_factory=dict, init=False)
    """What the second rung measured, by text (`_text_of`)."""

    def run(self) -> Answer:
        """Raises NoAnswerError if no candidate can be served."""
        space = CandidateSpace.parse(self.question.policies)
        self._build_inputs(space)
        tried = self._first_rung(space)
        if not tried:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise NoAnswerError(f"no policy could be served. {reasons}")
        rows = self._further_rungs(tried)
        tried = self._with_known_quality(tried)
        held_out = self._check_held_out(rows, space)
        return Answer(
            self.question, tuple(rows), tuple(tried), rows[0], tuple(held_out), self._vary(rows, tried),
            dict(self.left_out), dict(self.failed), self.not_varied,
        )  # fmt: skip

    def unused_words(self) -> list[str]:
        """The command's words that no cell keeps: each cell sets these keys itself."""
        number = (f"workload.num_prompts={self.effort.requests[2]}",)
        seeds = [f"seed={seed}" for seed in (0, *self.effort.seeds)]
        cells = [
            self._cell(Candidate(policy), number, [seed], part)
            for policy in self.question.policies
            for part in (self.question.search, self.question.held_out)
            for seed in seeds
        ]
        return kept_by_none(self.words, cells)

    def input_cells(self, space: CandidateSpace) -> dict[tuple[str, ...], Candidate]:
        """Cells that together need what the search needs: each policy as it is, on the requests of the search and on
        those that are held out, and with each choice of a slot.
        """
        most = (f"workload.num_prompts={self.effort.requests[2]}",)
        asked = [*((one, self.question.search) for one in (*space.defaults, *space.slot_choices)),
                 *((one, self.question.held_out) for one in space.defaults)]  # fmt: skip
        return {self._cell(one, most, part): one for one, part in asked}

    def _build_inputs(self, space: CandidateSpace) -> None:
        """Builds what the search needs; a policy that cannot be served as it is is left out."""
        cells = self.input_cells(space)
        self._leave_out(cells, self.evaluator.build_inputs(list(cells), self.question.require.lossless))

    def plan_inputs(self) -> list[PlannedStage]:
        """What `run` would build, or has built; a policy that cannot be served as it is is left out."""
        cells = self.input_cells(CandidateSpace.parse(self.question.policies))
        stages, problems = self.evaluator.planned_stages(list(cells), self.question.require.lossless)
        self._leave_out(cells, problems)
        return stages

    def _leave_out(self, cells: Mapping[tuple[str, ...], Candidate], problems: Mapping[tuple[str, ...], str]) -> None:
        for words, problem in problems.items():
            if cells[words].is_default:
                self.left_out.setdefault(cells[words].policy, problem)

    def _cell(self, candidate: Candidate, *parts: Sequence[str]) -> tuple[str, ...]:
        return self.question.words(candidate, self.words, *parts)

    def _rows(
        self, name: str, candidates: Sequence[Candidate], requests: int, seeds: Sequence[int], *parts: Sequence[str],
        notes_failures: bool = True,
    ) -> list[Row]:  # fmt: skip
        """The rows of those candidates that could be served."""
        number = f"workload.num_prompts={requests}"
        asked = [(one, [self._cell(one, (number, f"seed={seed}"), *parts) for seed in seeds]) for one in candidates]
        found = serve_rows(self.evaluator, name, asked)
        for candidate, row in zip(candidates, found, strict=True) if notes_failures else ():
            if isinstance(row, str):
                self._note_failure(candidate, row)
        return [row for row in found if isinstance(row, Row)]

    def _note_failure(self, candidate: Candidate, problem: str) -> None:
        if candidate.is_default:
            self.left_out.setdefault(candidate.policy, problem)
        else:
            self.failed[problem] = self.failed.get(problem, 0) + 1

    def _first_rung(self, space: CandidateSpace) -> list[Row]:
        names = [name for name in space.spaces if name not in self.left_out]
        defaults = space.only(names).defaults
        rows = self._rows("defaults", defaults, self.effort.requests[0], (0,), self.question.search)
        left = space.only([row.candidate.policy for row in rows])
        return [*rows, *self._drawn_rows(left, rows)] if rows else []

    def _drawn_rows(self, space: CandidateSpace, defaults: Sequence[Row]) -> Iterator[Row]:
        """Rows of drawn candidates, in batches."""
        question, most = self.question, self.effort.trials
        sampler = CandidateSampler(space, question.require, question.objective, question.seed)
        sampler.add_defaults(defaults)
        done = 0
        while done < most and (drawn := sampler.draw(min(self.effort.batch, most - done))):
            name = f"candidates {done + 1} to {done + len(drawn)} of {most}"
            rows = self._rows(name, drawn, self.effort.requests[0], (0,), question.search)
            known = {row.candidate: row for row in rows}
            for candidate in drawn:
                sampler.tell(candidate, known.get(candidate))
            yield from rows
            done += len(drawn)

    def _further_rungs(self, tried: Sequence[Row]) -> list[Row]:
        """The rows of the last rung, best first."""
        question, effort = self.question, self.effort
        kept = self._promoted_by_kind(tried, effort.keep[0])
        rows = self._rows("second rung", _candidates(kept), effort.requests[1], (0,), question.search)
        rows = self._with_quality(rows, question.search)
        kept = promoted(rows, question.require, question.objective, effort.keep[1])
        self.quality |= {_text_of(row): row.quality for row in rows}
        last = self._rows("last rung", _candidates(kept), effort.requests[2], effort.seeds, question.search)
        if not last:
            raise NoAnswerError("no candidate of the second rung could be served with all requests.")
        return ranked(self._with_known_quality(last), question.require, question.objective)

    def _promoted_by_kind(self, rows: Sequence[Row], keep: int) -> list[Row]:
        """As many lossless rows as lossy ones: what a lossy one is worth is not known before its text is."""
        kinds = ([row for row in rows if row.lossless], [row for row in rows if not row.lossless])
        return [one for own in kinds for one in promoted(own, self.question.require, self.question.objective, keep)]

    def _with_quality(self, rows: Sequence[Row], part: Sequence[str]) -> list[Row]:
        """The rows with the quality of their text on the requests of `part`, where a limit asks for it, or where a row
        may write another text than the cloud model's. A text that could not be served has no quality.
        """
        if self.question.require.quality_min is None and all(row.lossless for row in rows):
            return list(rows)
        writers: dict[Candidate | None, Candidate] = {}
        for row in rows:
            writers.setdefault(_text_of(row), row.candidate)
        words = (f"workload.num_prompts={self.effort.requests[1]}", "seed=0")
        cells = [(*without(self._cell(one, words, part), RUNTIME), *self.question.text) for one in writers.values()]
        results = dict(zip(writers, self.evaluator.evaluate("on text", cells), strict=True))
        return [replace(row, quality=_quality(results[_text_of(row)])) for row in rows]

    def _with_known_quality(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with the quality that the second rung measured of their text."""
        return [replace(row, quality=self.quality.get(_text_of(row))) for row in rows]

    def _check_held_out(self, rows: Sequence[Row], space: CandidateSpace) -> list[Row]:
        question = self.question
        defaults = [one for one in space.defaults if one.policy not in self.left_out]
        candidates = list(dict.fromkeys([*_candidates(rows[:5]), *defaults]))
        seeds = [1000 + seed for seed in self.effort.seeds]
        found = self._rows("held-out requests", candidates, self.effort.requests[2], seeds, question.held_out)
        return ranked(self._with_quality(found, question.held_out), question.require, question.objective)

    def _vary(self, rows: Sequence[Row], tried: Sequence[Row]) -> dict[str, tuple[tuple[str, tuple[Row, ...]], ...]]:
        """The best candidates of the best policies, the last rung's first, at each value of what is varied. The quality
        of a text is taken to stay.
        """
        question, effort = self.question, self.effort
        best: dict[str, Candidate] = {}
        for row in (*rows, *ranked(tried, question.require, question.objective)):
            if is_measured(row, question.require):
                best.setdefault(row.candidate.policy, row.candidate)
        varied = list(best.values())[:MAX_VARIED]
        found = {}
        for name, variation in question.sensitivity.items():
            steps = []
            for value, words in variation.items():
                parts = (question.search, words)
                title = f"{name}: {value}"
                some = self._rows(title, varied, effort.requests[1], (0,), *parts, notes_failures=False)
                some = ranked(self._with_known_quality(some), question.require, question.objective)
                if some:
                    steps.append((value, tuple(some)))
            found[name] = tuple(steps)
        return found


def _candidates(rows: Sequence[Row]) -> list[Candidate]:
    return [row.candidate for row in rows]


def _text_of(row: Row) -> Candidate | None:
    """The candidate that writes the row's text; None: the cloud's model, as in every lossless row."""
    return None if row.lossless else row.candidate


def _quality(found: CellResult) -> dict[str, float]:
    return {key: value for key, value in found.metrics.items() if key.startswith("quality/")}
