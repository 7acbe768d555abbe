"""Chooses a policy, with its options, that meets requirements at the least cost.

1. Every policy as its file has it is simulated with few requests; a lossy one is left out where text must be the cloud
   model's own.
2. Optuna draws further candidates, a policy first and then that policy's options (TPE, several objectives, limits as
   constraints), in batches, so that the draws do not depend on which cell ends first.
3. The better ones are simulated with more requests, the best with all, under several seeds.
4. The winner and every policy's default are served once on other prompts and seeds: what the answer claimed, and what
   it keeps.
5. What the answer rests on is varied: load, round trip, acceptance.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.answers.candidates import POLICY, Candidate, CandidateSpace
from pipeline.answers.evaluation import LOSSY, Evaluator
from pipeline.answers.ranking import Row, excess, objective_values, promoted, ranked
from pipeline.answers.requirements import Requirements
from pipeline.answers.words import joined, without
from pipeline.errors import UserError

if TYPE_CHECKING:
    import optuna


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


@dataclass(frozen=True)
class Variation:
    """One thing that an answer rests on: the words of each of its values, by what the value is called."""

    values: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Question:
    """What is searched for; words are those of a command line.

    `base` are the words of every cell, before the command's own; `search` and `held_out` those of the requests that
    the search and the last check see; `text` those of a run on text, which measures quality.
    """

    require: Requirements
    policies: Mapping[str, Mapping[str, Any] | None]
    effort: Effort
    objective: tuple[str, ...]
    base: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    sensitivity: Mapping[str, Variation] = field(default_factory=dict)
    own_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further words of single policies, such as the outcomes that know their trees."""
    seed: int = 0

    def words(self, candidate: Candidate, *parts: Sequence[str]) -> tuple[str, ...]:
        """The words of a candidate's cell."""
        load = [f"workload.devices={self.require.devices_min}"] if self.require.devices_min else []
        return joined(self.base, load, self.own_words.get(candidate.policy, ()), *parts, candidate.words)


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

    @property
    def sealed(self) -> Row:
        """The chosen row on held-out requests."""
        return next(row for row in self.held_out if row.candidate == self.claimed.candidate)

    @property
    def best_afterwards(self) -> Row:
        """The best row on held-out requests."""
        return self.held_out[0]


@dataclass
class Search:
    """A search for the answer to `question`."""

    question: Question
    evaluator: Evaluator
    words: tuple[str, ...] = ()
    """The command's own words, of every cell."""
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def run(self) -> Answer:
        """Raises NoAnswerError if no candidate can be served."""
        space = CandidateSpace.parse(self.question.policies)
        self._build_inputs(space)
        tried = self._first_rung(space)
        if not tried:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise NoAnswerError(f"no policy could be served. {reasons}")
        rows = self._further_rungs(tried)
        held_out = self._check_held_out(rows, space)
        return Answer(
            self.question, tuple(rows), tuple(tried), rows[0], tuple(held_out), self._vary(rows, tried),
            dict(self.left_out), dict(self.failed),
        )  # fmt: skip

    def input_cells(self, space: CandidateSpace) -> dict[tuple[str, ...], Candidate]:
        """Cells that together need what the search needs: each policy as it is, on the requests of the search and on
        those that are held out, and with each choice of a slot.
        """
        most = (f"workload.num_prompts={self.question.effort.requests[2]}",)
        asked = [*((one, self.question.search) for one in (*space.defaults, *space.slot_choices)),
                 *((one, self.question.held_out) for one in space.defaults)]  # fmt: skip
        return {self._cell(one, most, part): one for one, part in asked}

    def _build_inputs(self, space: CandidateSpace) -> None:
        """Builds what the search needs; a policy that cannot be served as it is is left out."""
        cells = self.input_cells(space)
        for words, problem in self.evaluator.build_inputs(list(cells), self.question.require.lossless).items():
            if cells[words].is_default:
                self.left_out.setdefault(cells[words].policy, problem)

    def _cell(self, candidate: Candidate, *parts: Sequence[str]) -> tuple[str, ...]:
        return self.question.words(candidate, self.words, *parts)

    def _rows(
        self, name: str, candidates: Sequence[Candidate], requests: int, seeds: Sequence[int], *parts: Sequence[str]
    ) -> list[Row]:
        """The rows of those candidates that could be served."""
        number = f"workload.num_prompts={requests}"
        cells = [self._cell(one, (number, f"seed={seed}"), *parts) for one in candidates for seed in seeds]
        results = self.evaluator.evaluate(name, cells)
        found = []
        for place, candidate in enumerate(candidates):
            own = results[place * len(seeds) : (place + 1) * len(seeds)]
            problems = [one.problem for one in own if one.problem]
            if problems:
                self._note_failure(candidate, problems[0])
            else:
                found.append(Row(candidate, tuple(own)))
        return found

    def _note_failure(self, candidate: Candidate, problem: str) -> None:
        if candidate.is_default:
            self.left_out.setdefault(candidate.policy, problem)
        else:
            self.failed[problem] = self.failed.get(problem, 0) + 1

    def _first_rung(self, space: CandidateSpace) -> list[Row]:
        effort, require = self.question.effort, self.question.require
        names = [name for name in space.spaces if name not in self.left_out]
        rows = self._rows("defaults", space.only(names).defaults, effort.requests[0], (0,), self.question.search)
        for row in [row for row in rows if require.lossless and not row.lossless]:
            self.left_out[row.candidate.policy] = LOSSY
            rows.remove(row)
        if not rows:
            return []
        left = space.only([row.candidate.policy for row in rows])
        return [*rows, *self._drawn_rows(left, rows)]

    def _drawn_rows(self, space: CandidateSpace, defaults: Sequence[Row]) -> Iterator[Row]:
        """Rows of drawn candidates, each candidate once."""
        study = self._study()
        _tell_defaults(study, space, defaults, self.question)
        known: dict[Candidate, Row | None] = {row.candidate: row for row in defaults}
        effort, left = self.question.effort, self.question.effort.trials
        while left > 0:
            trials = [study.ask() for _ in range(min(left, effort.batch))]
            drawn = [space.draw(trial) for trial in trials]
            new = [one for one in dict.fromkeys(drawn) if one not in known]
            name = f"candidates {effort.trials - left + 1} to {effort.trials - left + len(trials)} of {effort.trials}"
            rows = self._rows(name, new, effort.requests[0], (0,), self.question.search)
            known |= {**dict.fromkeys(new), **{row.candidate: row for row in rows}}
            for trial, candidate in zip(trials, drawn, strict=True):
                _tell(study, trial, known.get(candidate), self.question)
            yield from rows
            left -= len(trials)

    def _study(self) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=self.question.seed, constant_liar=True, n_startup_trials=16)
        return optuna.create_study(directions=["minimize"] * len(self.question.objective), sampler=sampler)

    def _further_rungs(self, tried: Sequence[Row]) -> list[Row]:
        """The rows of the last rung, best first."""
        question, effort = self.question, self.question.effort
        kept = self._promoted_by_kind(tried, effort.keep[0])
        rows = self._rows("second rung", _candidates(kept), effort.requests[1], (0,), question.search)
        rows = self._with_quality(rows)
        kept = promoted(rows, question.require, question.objective, effort.keep[1])
        quality = {row.candidate: row.quality for row in rows}
        last = self._rows("last rung", _candidates(kept), effort.requests[2], effort.seeds, question.search)
        last = [Row(row.candidate, row.cells, quality.get(row.candidate, {})) for row in last]
        if not last:
            raise NoAnswerError("no candidate of the second rung could be served with all requests.")
        return ranked(last, question.require, question.objective)

    def _promoted_by_kind(self, rows: Sequence[Row], keep: int) -> list[Row]:
        """As many lossless rows as lossy ones: what a lossy one is worth is not known before its text is."""
        kinds = ([row for row in rows if row.lossless], [row for row in rows if not row.lossless])
        return [one for own in kinds for one in promoted(own, self.question.require, self.question.objective, keep)]

    def _with_quality(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with the quality of their text, where it is asked for, or may differ from the cloud model's."""
        question = self.question
        if not question.require.wants_quality and all(row.lossless for row in rows):
            return list(rows)
        lossy = [row.candidate for row in rows if not row.lossless]
        lossless = [row.candidate for row in rows if row.lossless][:1]  # they all write the same text
        number = f"workload.num_prompts={question.effort.requests[1]}"
        texts = [*lossless, *lossy]
        cells = [
            (*without(self._cell(one, (number, "seed=0"), question.search), RUNTIME), *question.text) for one in texts
        ]
        results = zip(texts, self.evaluator.evaluate("on text", cells), strict=True)
        measured = {one: Row(one, (found,)) for one, found in results if found.complete}
        same = measured.get(lossless[0]) if lossless else None
        written = {row.candidate: same if row.lossless else measured.get(row.candidate) for row in rows}
        return [Row(row.candidate, row.cells, _quality(written[row.candidate])) for row in rows]

    def _check_held_out(self, rows: Sequence[Row], space: CandidateSpace) -> list[Row]:
        effort, question = self.question.effort, self.question
        defaults = [one for one in space.defaults if one.policy not in self.left_out]
        wanted = list(dict.fromkeys([*_candidates(rows[:5]), *defaults]))
        seeds = [1000 + seed for seed in effort.seeds]
        known = {row.candidate: row.quality for row in rows}
        found = self._rows("held-out requests", wanted, effort.requests[2], seeds, question.held_out)
        found = [Row(row.candidate, row.cells, known.get(row.candidate, {})) for row in found]
        return ranked(found, question.require, question.objective)

    def _vary(self, rows: Sequence[Row], tried: Sequence[Row]) -> dict[str, tuple[tuple[str, tuple[Row, ...]], ...]]:
        """The best candidates of the best policies, the last rung's first, at each value of what is varied."""
        question, effort = self.question, self.question.effort
        best: dict[str, Candidate] = {}
        for row in (*rows, *ranked(tried, question.require, question.objective)):
            best.setdefault(row.candidate.policy, row.candidate)
        varied = list(best.values())[:MAX_VARIED]
        found = {}
        for name, variation in question.sensitivity.items():
            steps = []
            for value, words in variation.values.items():
                parts = (question.search, words)
                some = self._rows(f"{name}: {value}", varied, effort.requests[1], (0,), *parts)
                if some:
                    steps.append((value, tuple(ranked(some, question.require, question.objective))))
            found[name] = tuple(steps)
        return found


def _candidates(rows: Sequence[Row]) -> list[Candidate]:
    return [row.candidate for row in rows]


def _quality(row: Row | None) -> dict[str, float]:
    return {key: value for key, value in row.metrics.items() if key.startswith("quality/")} if row else {}


def _tell(study: "optuna.Study", trial: "optuna.Trial", row: Row | None, question: Question) -> None:
    """Tells a trial's objectives, and what it breaks; a candidate that could not be served failed."""
    from optuna.trial import TrialState

    if row is None:
        study.tell(trial, state=TrialState.FAIL)
        return
    trial.set_constraint(_CONSTRAINT, excess(row, question.require))
    study.tell(trial, _told_values(row, question))


def _tell_defaults(study: "optuna.Study", space: CandidateSpace, rows: Sequence[Row], question: Question) -> None:
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import create_trial

    choice = CategoricalDistribution(list(space.spaces))
    for row in rows:
        study.add_trial(
            create_trial(
                params={POLICY: row.candidate.policy},
                distributions={POLICY: choice},
                values=_told_values(row, question),
                constraints={_CONSTRAINT: excess(row, question.require)},
            )
        )


_CONSTRAINT, _UNKNOWN = "require", 1e12


def _told_values(row: Row, question: Question) -> list[float]:
    """The objectives as the sampler takes them: finite."""
    return [min(value, _UNKNOWN) for value in objective_values(row, question.objective)]
