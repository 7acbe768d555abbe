"""Launches the jobs of a sweep on worker processes: stages that several jobs need are built first, and once.

What keeps jobs from running is said before any runs. The launcher starts a job again if its worker process died. It
leaves out jobs that an earlier command of the same sweep completed.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

from pipeline.artifacts.estimates import pair_parameters
from pipeline.artifacts.progress_display import ProgressLines
from pipeline.artifacts.runner import is_forced
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.config import sources
from pipeline.config.compose import written_overrides
from pipeline.errors import BAD_INPUT, INTERNAL_ERROR, INTERRUPTED, UserError
from pipeline.parallel import cells
from pipeline.parallel.cells import Cell, CellEnd, Launch
from pipeline.parallel.workers import RETRIES, LostTask, WorkerCall, Workers, run_with_retries
from pipeline.report import job_result
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import OFF
from pipeline.running import Job, create_job, current_files

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class CellPlan:
    """What a job needs: the `stages` to build by digest, inputs first, and the memory that they take. Those with the
    digests `forced` are built again.
    """

    goal: Stage
    stages: Mapping[str, Stage]
    forced: frozenset[str]
    memory_nbytes: float
    store: Store


@dataclass
class SweepLaunch:
    """Runs the jobs of one sweep on `workers`, and starts a job that lost its worker up to `retries` times again.

    `statuses` has the exit status of each job that ran, by its number.
    """

    workers: Workers
    launch: Launch
    retries: int = RETRIES
    file: TextIO = field(default_factory=lambda: sys.stdout)
    statuses: dict[int, int] = field(default_factory=dict, init=False)

    def run(self, jobs: Sequence[Cell]) -> None:
        """Raises KeyboardInterrupt where a job was interrupted."""
        tracked = any(job.config.tracking.uri != OFF for job in jobs)
        ready = self.workers.prepare(cells.import_modules, (self.launch, tracked))
        plans = plan_cells(jobs, self._say)
        kept = keep_results(jobs, plans, self._say)
        staying = [job.number for job in jobs if job.number not in plans and cells.is_complete(job)]
        left = [job for job in jobs if job.number not in kept and job.number not in staying]
        self._leave_results(staying)
        needed = [plans[job.number] for job in left if job.number in plans]
        shared, memory_nbytes = shared_stages(needed), max((plan.memory_nbytes for plan in needed), default=0.0)
        for job in (job for job in left if cells.is_complete(job)):  # of another configuration
            (cells.job_folder(job.config) / job_result.JOB_FILE).unlink()
        if left:
            self._say(_describe(len(left), shared, self.workers.describe(memory_nbytes)))
        for _ in ready:  # the processes are there
            pass
        problems = self._build_shared(shared, plans, memory_nbytes)
        left = [_forcing_own(job, plans.get(job.number), shared) for job in left]
        self._run_cells([_blocked(job, plans.get(job.number), problems) for job in left], memory_nbytes)

    def _leave_results(self, numbers: Sequence[int]) -> None:
        """Leaves the results of an earlier command as they are: these jobs cannot run now."""
        for number in numbers:
            self.statuses[number] = BAD_INPUT
            self._say(f"job {number}: the result of an earlier command stays")

    def _build_shared(
        self, stages: Sequence[Stage], plans: Mapping[int, CellPlan], memory_nbytes: float
    ) -> dict[str, str]:
        """Builds the stages, those that need each other in turn; the problems of those that failed, by digest."""
        problems: dict[str, str] = {}
        roots = {digest: plan.store.root for plan in plans.values() for digest in plan.stages}
        forced = {digest for plan in plans.values() for digest in plan.forced}
        for level in levels(stages):
            ready = [stage for stage in level if problems.keys().isdisjoint(stage.ancestors)]
            tasks = [(self.launch, roots[stage.digest], stage.digest in forced, stage) for stage in ready]
            for index, problem in self._run_tasks(cells.build_stage, tasks, memory_nbytes):
                text = problem.reason if isinstance(problem, LostTask) else problem
                if text:
                    problems[ready[index].digest] = f"stage {ready[index].name}, which several jobs need: {text}"
        return problems

    def _run_cells(self, jobs: Sequence[Cell], memory_nbytes: float) -> None:
        size, lines = self.workers.batch_size(len(jobs)), ProgressLines("sweep", self._say, brief=True)
        batches = [tuple(jobs[at : at + size]) for at in range(0, len(jobs), size)]
        tasks, ended = [(self.launch, batch) for batch in batches], 0
        for index, ends in self._run_tasks(cells.run_cells, tasks, memory_nbytes):
            for end in self._lost_ends(batches[index], ends) if isinstance(ends, LostTask) else ends:
                self.statuses[end.number] = end.status
                ended += 1
                self._print(end)
                if end.status == INTERRUPTED:  # no other job begins
                    raise KeyboardInterrupt
            lines.progress(ended, len(jobs))

    def _lost_ends(self, batch: Sequence[Cell], lost: LostTask) -> Iterator[CellEnd]:
        """Writes a failed result for each job of `batch` that no worker process completed."""
        for job in batch:
            if cells.is_complete(job):
                yield CellEnd(job.number, 0, "")
            else:
                problem = f"lost at least {self.retries + 1} times: {lost.reason}"
                cells.failed_result(job, problem).write(cells.job_folder(job.config))
                yield CellEnd(job.number, INTERNAL_ERROR, f"error: job {job.number} was {problem}\n")

    def _run_tasks(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], memory_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        return run_with_retries(self.workers, call, tasks, memory_nbytes, self._say, self.retries)

    def _print(self, end: CellEnd) -> None:
        if end.printed:
            self._say(end.printed.rstrip("\n"))

    def _say(self, text: str) -> None:
        print(text, file=self.file, flush=True)


def plan_cells(jobs: Sequence[Cell], say: Callable[[str], None]) -> dict[int, CellPlan]:
    """The plans of the valid jobs by number; says what keeps the others from running."""
    plans: dict[int, CellPlan] = {}
    invalid: dict[str, list[int]] = {}
    lines = ProgressLines("planned", say, brief=True)
    for done, job in enumerate(jobs, 1):
        try:
            if plan := plan_cell(job.config):
                plans[job.number] = plan
        except UserError as problem:
            invalid.setdefault(str(problem), []).append(job.number)
        lines.progress(done, len(jobs))
    others = ", while the others do" if sum(map(len, invalid.values())) < len(jobs) else ""
    for reason, numbers in invalid.items():
        jobs_named = f"{'jobs' if len(numbers) > 1 else 'job'} {', '.join(map(str, numbers))}"
        say(f"cannot run{others}: {jobs_named}: {reason}")
    return plans


def plan_cell(config: "DictConfig") -> CellPlan | None:
    """The plan of a job; None if it stops before its goal. Raises UserError for an invalid one."""
    if config.stage != "all":
        return None
    with _composed_job(config) as job:
        return _plan_job(job, str(config.goal))


@contextmanager
def _composed_job(config: "DictConfig") -> Iterator[Job]:
    from omegaconf import open_dict, read_write

    own = config.copy()
    with read_write(own), open_dict(own):
        del own["hydra"]
    with cells.composed_as(config):
        yield create_job(own)


def _plan_job(job: Job, goal: str) -> CellPlan:
    stages = job.plan(goal).stages
    forced = {stage.digest for stage in stages.values() if is_forced(stage, job.force)}
    missing = {one.digest: one for one in stages.values() if one.digest in forced or not job.store.has(one)}
    pair = pair_parameters(stages.values())
    memory_nbytes = max((job.store.estimate(stage, pair).memory_nbytes for stage in missing.values()), default=0.0)
    return CellPlan(stages[goal], missing, frozenset(forced), memory_nbytes, job.store)


def shared_stages(plans: Sequence[CellPlan]) -> list[Stage]:
    """The stages to build that two or more jobs need."""
    counts: dict[str, int] = {}
    known: dict[str, Stage] = {}
    for plan in plans:
        for digest, stage in plan.stages.items():
            counts[digest] = counts.get(digest, 0) + 1
            known[digest] = stage
    return [stage for digest, stage in known.items() if counts[digest] > 1]


def levels(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in groups: each needs only stages of earlier groups, or none of these stages."""
    depth: dict[str, int] = {}
    for stage in sorted(stages, key=lambda one: len(one.ancestors)):
        depth[stage.digest] = 1 + max((depth.get(digest, 0) for digest in stage.ancestors), default=0)
    numbers = sorted(set(depth.values()))
    return [[stage for stage in stages if depth[stage.digest] == number] for number in numbers]


def keep_results(jobs: Sequence[Cell], plans: Mapping[int, CellPlan], say: Callable[[str], None]) -> Collection[int]:
    """The numbers of the jobs that an earlier command of this sweep completed. Their results are written with the
    overrides of this one, which `SweepNote.lists` compares, and with its files: what they say now made the same result.
    """
    kept = [(job, found) for job in jobs if (found := _find_result(job, plans.get(job.number)))]
    for job, found in kept:
        own = replace(found, overrides=cells.masked_overrides(job), files=_files(job, found.files))
        if own != found:  # else it keeps its date
            own.write(cells.job_folder(job.config))
        say(f"job {job.number}: complete since an earlier command")
    return {job.number for job, _ in kept}


def _find_result(job: Cell, plan: CellPlan | None) -> JobResult | None:
    """The result of an earlier command of this sweep, if it completed the job with the same configuration, perhaps
    written differently.
    """
    found = job_result.read_result(cells.job_folder(job.config)) if cells.is_complete(job) else None
    same = plan and found and found.digest == plan.goal.digest and found.digest not in plan.stages
    return found if same else None


def _files(job: Cell, known: Mapping[str, str]) -> Mapping[str, str]:
    """The files of conf/ that the job is composed of now; `known` where none of these has changed."""
    if not any(sources.changed_files(known)):
        return known
    with _composed_job(job.config) as composed:
        composed.plan(str(job.config.goal))
        return current_files(composed, written_overrides(job.config.hydra))


def _blocked(job: Cell, plan: CellPlan | None, problems: Mapping[str, str]) -> Cell:
    reason = next((problems[digest] for digest in (plan.stages if plan else ()) if digest in problems), "")
    return replace(job, blocked=reason) if reason else job


def _forcing_own(job: Cell, plan: CellPlan | None, shared: Sequence[Stage]) -> Cell:
    """The job without the force of what was built again for several jobs."""
    if plan is None or not plan.forced:
        return job
    own = plan.forced - {stage.digest for stage in shared}
    return cells.forcing(job, [plan.stages[digest].name for digest in plan.stages if digest in own])


def _describe(num_jobs: int, shared: Sequence[Stage], workers: str) -> str:
    first = f"; first {len(shared)} stages that several of them need" if shared else ""
    return f"{num_jobs} jobs{first}; {workers}"
