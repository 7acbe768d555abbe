"""Worker processes of a sweep, behind one interface: joblib's on this machine, Slurm's or Ray's on a cluster.

Each class is what a file of conf/hydra/launcher describes.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from native.machine import free_nbytes, usable_cores
from pipeline.config.build import ConfigSchema, construct
from pipeline.errors import ConfigError

WorkerCall = Callable[..., Any]
"""A function of an importable module: its arguments and its result travel between processes."""
RETRIES = 2
"""How often a task begins again after its worker process or host died."""
_MIN_WORKER_NBYTES = 5e8
"""A worker process that has imported the pipeline and simulates."""
_POLL_S = 1.0


@dataclass(frozen=True)
class LostTask:
    """Stands for the result of a task whose worker process or host died."""

    reason: str


class Workers(Protocol):
    """Calls functions in worker processes."""

    def describe(self, job_nbytes: float) -> str:
        """How many jobs run at once, and why; a job takes up to `job_nbytes` of memory."""

    def batch_size(self, num_jobs: int) -> int:
        """Jobs that one task should run, one after the other."""

    def prepare(self, call: WorkerCall, task: tuple[Any, ...]) -> Iterator[Any]:
        """Lets each process that stays begin with `call(*task)`, while this process goes on; the iterator ends when all
        have done so. It is to end before `run` begins.
        """

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        """Calls `call(*task)` for each task; yields its index and its result, or a `LostTask`, as tasks end."""


def run_with_retries(
    workers: Workers, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float,
    say: Callable[[str], None], retries: int = RETRIES,
) -> Iterator[tuple[int, Any | LostTask]]:  # fmt: skip
    """As `Workers.run`, in rounds: what a round lost runs in the next one. A `LostTask` is the last round's, for a task
    that was lost in every round.
    """
    waiting = list(range(len(tasks)))
    for round_number in range(retries + 1):
        lost: list[int] = []
        for at, result in workers.run(call, [tasks[index] for index in waiting], job_nbytes):
            if isinstance(result, LostTask) and round_number < retries:
                lost.append(waiting[at])
            else:
                yield waiting[at], result
        if not lost:
            return
        say(f"{len(lost)} tasks lost their worker and start again")
        waiting = sorted(lost)


@dataclass(frozen=True)
class JoblibWorkers:
    """Processes of this machine: `n_jobs` of them; null: as many as cores, and as jobs fit into the free memory."""

    n_jobs: int | None = None

    def __post_init__(self) -> None:
        if self.n_jobs is not None and (self.n_jobs == 0 or self.n_jobs < -1):
            raise ConfigError(
                f"hydra.launcher.n_jobs is {self.n_jobs}; give 1 or more, -1 for all cores, or null for as many as "
                "cores and memory allow."
            )

    def count(self, job_nbytes: float) -> int:
        """Processes at once."""
        if self.n_jobs is not None:
            return self.n_jobs if self.n_jobs > 0 else usable_cores()
        return max(1, min(usable_cores(), int(free_nbytes() // max(job_nbytes, _MIN_WORKER_NBYTES))))

    def describe(self, job_nbytes: float) -> str:
        memory = f"up to {max(job_nbytes, _MIN_WORKER_NBYTES) / 1e9:.1f} GB for each"
        return f"{self.count(job_nbytes)} at once ({usable_cores()} cores; {free_nbytes() / 1e9:.1f} GB free, {memory})"

    def batch_size(self, num_jobs: int) -> int:  # noqa: ARG002
        """One: the processes stay, with what they imported."""
        return 1

    def prepare(self, call: WorkerCall, task: tuple[Any, ...]) -> Iterator[Any]:
        """As many processes as jobs of the least memory have; `run` ends those that are too many."""
        count = self.count(0.0)
        return _until_lost(lambda: self._start(count, call, enumerate([task] * count)))

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        """A process that dies takes the others along. What joblib had not taken goes on; what it had taken runs again
        in halves, until one task dies alone: that one is lost. Where it had taken none, all go on, once.
        """
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        count, groups, idle = self.count(job_nbytes), [list(range(len(tasks)))], False
        while groups:
            waiting, taken = groups.pop(0), list[int]()
            numbered = [(index, tasks[index]) for index in waiting]
            try:
                for index, result in self._start(count, call, _noting(taken, numbered)):
                    waiting.remove(index)
                    yield index, result
            except TerminatedWorkerError as problem:
                begun = [index for index in taken if index in waiting] or (waiting if idle else [])
                idle = idle or not begun
                if len(begun) == 1:
                    yield begun[0], LostTask(f"a worker process was killed, perhaps for its memory ({problem})"[:300])
                untaken = [index for index in waiting if index not in begun]
                groups = [*([untaken] if untaken else []), *groups, *_halves(begun)]

    def _start(self, count: int, call: WorkerCall, numbered: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[Any]:
        """The first tasks have begun when this returns; the others follow as their results are taken."""
        from joblib import Parallel, delayed

        # joblib sends a second task ahead to each process unless told to wait
        run_all = Parallel(
            n_jobs=count, backend="loky", batch_size=1, pre_dispatch="n_jobs", return_as="generator_unordered"
        )
        found: Iterator[Any] = run_all(delayed(_call_numbered)(i, call, task) for i, task in numbered)
        return found


def _until_lost(start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The results of what begins now. A process that dies before it has a job is no loss, also while others are given
    theirs: `run` starts new ones.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def rest(results: Iterator[Any]) -> Iterator[Any]:
        with contextlib.suppress(TerminatedWorkerError):
            yield from results

    with contextlib.suppress(TerminatedWorkerError):
        return rest(start())
    return iter(())


def _noting(taken: list[int], numbered: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields the tasks, and appends the number of each to `taken` before that."""
    for index, task in numbered:
        taken.append(index)
        yield index, task


def _halves(numbers: list[int]) -> list[list[int]]:
    """The two halves; of one number no list."""
    middle = (len(numbers) + 1) // 2
    return [numbers[:middle], numbers[middle:]] if len(numbers) > 1 else []


def _call_numbered(index: int, call: WorkerCall, task: tuple[Any, ...]) -> tuple[int, Any]:
    return index, call(*task)


@dataclass(frozen=True)
class SubmititWorkers:
    """Tasks of a Slurm cluster (`cluster: local`: processes of this machine, to try a set-up), by submitit.

    `max_workers` tasks run at once; `parameters` are submitit's own (timeout_min, slurm_partition, cpus_per_task,
    mem_gb and the like); their scripts and output are below `folder`, which all hosts share.
    """

    folder: str
    max_workers: int = 16
    cluster: Literal["slurm", "local"] = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_workers < 1:
            raise ConfigError(f"hydra.launcher.max_workers is {self.max_workers}; give 1 or more.")

    def describe(self, job_nbytes: float) -> str:  # noqa: ARG002
        return f"{self.max_workers} tasks at once on {self.cluster}; their output is below {self.folder}"

    def batch_size(self, num_jobs: int) -> int:
        """So many that each of the workers starts, and imports, three times."""
        return max(1, num_jobs // (3 * self.max_workers))

    def prepare(self, call: WorkerCall, task: tuple[Any, ...]) -> Iterator[Any]:  # noqa: ARG002
        """Its processes do not stay."""
        return iter(())

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        import time

        executor = self._executor(job_nbytes)
        ahead, running = list(enumerate(tasks)), dict[int, Any]()
        try:
            while ahead or running:
                while ahead and len(running) < self.max_workers:
                    index, task = ahead.pop(0)
                    running[index] = executor.submit(call, *task)
                ended = [index for index, job in running.items() if job.done()]
                for index in ended:
                    yield index, _submitit_result(running.pop(index))
                if not ended:
                    time.sleep(_POLL_S)
        finally:
            for job in running.values():
                job.cancel()

    def _executor(self, job_nbytes: float) -> Any:
        submitit = import_engine("submitit", "slurm")
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        memory = {} if self.cluster == "local" else {"mem_gb": max(2, round(2 * job_nbytes / 1e9))}
        executor.update_parameters(**{"name": "tandem", "timeout_min": 24 * 60, **memory, **self.parameters})
        return executor


def _submitit_result(job: Any) -> Any | LostTask:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return job.result()
    except FailedJobError:  # an exception of the called function, which is a fault of the project
        raise
    except UncompletedJobError as problem:
        return LostTask(_first_line(problem))


@dataclass(frozen=True)
class RayWorkers:
    """Tasks of a Ray cluster, whose hosts have this environment and share the folders of the sweep.

    `address` is the cluster's; null: RAY_ADDRESS, else a cluster of this machine alone, for the time of the sweep. A
    task takes `cpus` of a host; `max_workers` run at once, null: as many as there is room for.
    """

    address: str | None = None
    cpus: float = 1.0
    max_workers: int | None = None

    def __post_init__(self) -> None:
        if self.max_workers is not None and self.max_workers < 1:
            raise ConfigError(f"hydra.launcher.max_workers is {self.max_workers}; give 1 or more, or null.")
        if not self.cpus > 0:
            raise ConfigError(f"hydra.launcher.cpus is {self.cpus}; give a job a share of a host's CPUs above 0.")

    def describe(self, job_nbytes: float) -> str:
        place = self.address or os.environ.get("RAY_ADDRESS") or "this machine"
        limit = f", {self.max_workers} at most" if self.max_workers else ""
        return f"on Ray at {place}: {self.cpus:g} CPUs and {job_nbytes / 1e9:.1f} GB for each{limit}"

    def batch_size(self, num_jobs: int) -> int:  # noqa: ARG002
        """One: Ray keeps its processes, with what they imported."""
        return 1

    def prepare(self, call: WorkerCall, task: tuple[Any, ...]) -> Iterator[Any]:  # noqa: ARG002
        """Ray starts its processes when tasks come."""
        return iter(())

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        ray = self._connect()
        # A host that dies takes its tasks along. The sweep starts them again: Ray knows of no complete jobs.
        remote = ray.remote(num_cpus=self.cpus, memory=int(job_nbytes) or None, max_retries=0)(call)
        ahead, running = list(enumerate(tasks)), dict[Any, int]()
        limit = self.max_workers or len(tasks)
        try:
            while ahead or running:
                while ahead and len(running) < limit:
                    index, task = ahead.pop(0)
                    running[remote.remote(*task)] = index
                ended, _ = ray.wait(list(running), num_returns=1)
                for one in ended:
                    yield running.pop(one), _ray_result(ray, one)
        finally:
            for one in running:
                ray.cancel(one, force=True)

    def _connect(self) -> Any:
        ray = import_engine("ray", "ray")
        if not ray.is_initialized():
            own = (os.path.abspath(path) for path in sys.path if "site-packages" not in path)
            paths = os.pathsep.join(path for path in own if Path(path).is_dir())
            environment = {"env_vars": {"PYTHONPATH": paths}}
            ray.init(self.address, runtime_env=environment, log_to_driver=True, include_dashboard=False)
        return ray


def _ray_result(ray: Any, one: Any) -> Any | LostTask:
    try:
        return ray.get(one)
    except ray.exceptions.RayTaskError:  # an exception of the called function, which is a fault of the project
        raise
    except ray.exceptions.RayError as problem:
        return LostTask(_first_line(problem))


def _first_line(problem: Exception) -> str:
    """Of its text; the name of its class where it has none."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0][:300]


def create_workers(node: Any) -> Workers:
    """The workers of a node of conf/hydra/launcher. Raises ConfigError."""
    schema = ConfigSchema(str, lambda _target, _name: None)
    workers: Workers = construct(schema.coerce_target(node, "hydra.launcher.workers"), None)
    return workers


def import_engine(module: str, extra: str) -> Any:
    """The module of an engine. Raises ConfigError with the command that installs it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as problem:
        raise ConfigError(f"this launcher needs {module}: pip install 'tandem-llm[{extra}]'.") from problem
