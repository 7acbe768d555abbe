"""Serves many cells on worker processes, each cell once, and builds first what they need."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

from pipeline.answers.cell import CellResult, composed_cell, run_cell
from pipeline.artifacts.progress_display import ProgressLines, display_for
from pipeline.artifacts.stage import Stage
from pipeline.config.build import construct
from pipeline.config.plan import Plan
from pipeline.errors import UserError, survived_problem
from pipeline.parallel.workers import LostTask, Workers, run_with_retries
from pipeline.report.plan import PlannedStage, plan_stages
from pipeline.running import Job, create_job

LOSSY = "its text is not the cloud model's own, which require.lossless asks for"
CELL_NBYTES = 6e8
"""Memory of a worker process that simulates some hundred requests."""


@dataclass
class Evaluator:
    """Cells that were served, by their words; further ones are served by `workers`."""

    workers: Workers
    config_dir: str | None = None
    file: TextIO = field(default_factory=lambda: sys.stderr)
    known: dict[tuple[str, ...], CellResult] = field(default_factory=dict)
    _failed_stages: dict[str, str] = field(default_factory=dict, init=False)
    """Digest -> what failed."""

    def evaluate(self, name: str, cells: Sequence[Sequence[str]]) -> list[CellResult]:
        """The results of the cells in their order; progress is printed under `name`."""
        asked = [tuple(words) for words in cells]
        missing = [words for words in dict.fromkeys(asked) if words not in self.known]
        lines = ProgressLines(name, self._say, brief=True)
        tasks = [(words, self.config_dir) for words in missing]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A worker stopped")  # joblib starts a process anew where it has grown
            found = run_with_retries(self.workers, run_cell, tasks, CELL_NBYTES, self._say)
            for done, (index, result) in enumerate(found, 1):
                words = missing[index]
                self.known[words] = CellResult(words, problem=result.reason) if isinstance(result, LostTask) else result
                lines.progress(done, len(missing))
        return [self.known[words] for words in asked]

    def build_inputs(self, cells: Sequence[Sequence[str]], only_lossless: bool = False) -> dict[tuple[str, ...], str]:
        """Builds the stages that the cells are served from, with progress; the problem of each cell that has one, and
        `LOSSY` for a lossy one where only lossless ones are asked for: for these nothing is built.
        """

        def build(job: Job, plan: Plan) -> None:
            self._build(replace(job, observer=display_for(self.file)), _missing_inputs(job, plan))

        return self._each_plan(cells, only_lossless, build)

    def _each_plan(
        self, cells: Sequence[Sequence[str]], only_lossless: bool, use: Callable[[Job, Plan], None]
    ) -> dict[tuple[str, ...], str]:
        """Plans each cell once, and uses the plan; the problems."""
        problems = {}
        for words in dict.fromkeys(map(tuple, cells)):
            try:
                with composed_cell(words, self.config_dir) as cfg:
                    job = create_job(cfg)
                    plan = job.plan()
                    if only_lossless and not _is_lossless(plan):
                        problems[words] = LOSSY
                    else:
                        use(job, plan)
            except Exception as problem:
                problems[words] = survived_problem(problem).partition("\n")[0]
        return problems

    def _build(self, job: Job, stages: Sequence[Stage]) -> None:
        """Builds the stages in turn. Raises UserError; a stage that failed once is not tried again."""
        for stage in stages:
            if stage.digest in self._failed_stages:
                raise UserError(self._failed_stages[stage.digest])
            try:
                job.run([stage])
            except UserError as problem:
                self._failed_stages[stage.digest] = str(problem)
                raise
            except Exception as problem:
                self._failed_stages[stage.digest] = survived_problem(problem)
                raise UserError(self._failed_stages[stage.digest]) from problem

    def planned_stages(
        self, cells: Sequence[Sequence[str]], only_lossless: bool = False
    ) -> tuple[list[PlannedStage], dict[tuple[str, ...], str]]:
        """What the cells are served from, each stage once, with estimates of those to build; and the problem of each
        cell that has one, as `build_inputs` says it.
        """
        found: dict[str, PlannedStage] = {}

        def keep(job: Job, plan: Plan) -> None:
            inputs = {name: stage for name, stage in plan.stages.items() if stage is not plan.serve}
            found.update((one.key, one) for one in plan_stages(inputs, plan.kinds, job.store))

        problems = self._each_plan(cells, only_lossless, keep)
        return list(found.values()), problems

    def _say(self, text: str) -> None:
        print(text, file=self.file, flush=True)


def _is_lossless(plan: Plan) -> bool:
    """True if the policy writes the cloud model's own text; known before any of its artifacts is built."""
    policy = construct(plan.serve.args["setup"]["policy"], None, "policy")
    return bool(getattr(policy, "lossless", True))


def _missing_inputs(job: Job, plan: Plan) -> list[Stage]:
    if job.store.has(plan.serve):
        return []
    return [stage for stage in plan.stages.values() if stage is not plan.serve and not job.store.has(stage)]
