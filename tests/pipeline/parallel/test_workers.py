"""What workers ask of submitit, Ray and joblib, by stand-ins of these."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

from pipeline.errors import ConfigError
from pipeline.parallel import workers
from pipeline.parallel.workers import JoblibWorkers, LostTask, RayWorkers, SubmititWorkers


class UncompletedJobError(RuntimeError):
    """As submitit's."""


class FailedJobError(UncompletedJobError):
    """As submitit's, for an exception of the called function."""


@dataclass
class Cluster:
    """Stands for submitit, whose jobs have ended when they are asked: those of -1 were lost, those of -2 failed."""

    parameters: dict[str, Any] = field(default_factory=dict)
    running: list[Any] = field(default_factory=list)
    most: int = 0
    cancelled: int = 0

    def update_parameters(self, **parameters: Any) -> None:
        self.parameters |= parameters

    def submit(self, call: Any, *task: Any) -> Any:
        self.running.append(job := SimpleNamespace(done=lambda: True, cancel=self.cancel))
        job.result = lambda: self.end(job, call, task)
        self.most = max(self.most, len(self.running))
        return job

    def end(self, job: Any, call: Any, task: Any) -> Any:
        self.running.remove(job)
        if task == (-1,):
            raise UncompletedJobError("node 7 failed\nand more")
        if task == (-2,):
            raise FailedJobError("Job failed during processing with trace:\nRuntimeError: a fault")
        return call(*task)

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found, utils = Cluster(), ModuleType("submitit.core.utils")
    utils.UncompletedJobError = UncompletedJobError  # type: ignore[attr-defined]
    utils.FailedJobError = FailedJobError  # type: ignore[attr-defined]
    for name in ("submitit", "submitit.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "submitit.core.utils", utils)
    engine = SimpleNamespace(AutoExecutor=lambda folder, cluster: found)
    monkeypatch.setattr(workers, "import_engine", lambda module, extra: engine)
    return found


def test_a_cluster_gets_as_many_tasks_as_it_may_run_and_lost_ones_are_told(cluster: Cluster) -> None:
    ended = dict(SubmititWorkers("x", 2).run(abs, [(number,) for number in (3, -1, 5, 6)], 1e9))
    assert ended == {0: 3, 1: LostTask("node 7 failed"), 2: 5, 3: 6}
    assert (cluster.most, cluster.cancelled) == (2, 0)


def test_tasks_of_a_cluster_end_with_the_sweep(cluster: Cluster) -> None:
    running = SubmititWorkers("x", 3).run(abs, [(1,), (2,), (3,)], 1e9)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert cluster.cancelled == 2


@pytest.mark.parametrize(
    ("kind", "given", "mem_gb"),
    [("slurm", {}, 10), ("slurm", {"mem_gb": 64}, 64), ("local", {}, None), ("local", {"mem_gb": 3}, 3)],
)
def test_a_task_of_slurm_asks_for_twice_the_memory_that_its_jobs_take(
    cluster: Cluster, kind: Literal["slurm", "local"], given: dict[str, int], mem_gb: int | None
) -> None:
    list(SubmititWorkers("x", 2, kind, given).run(abs, [(1,)], 5e9))
    assert cluster.parameters.get("mem_gb") == mem_gb


@dataclass
class Ray:
    """Stands for Ray, in whose cluster a task ends when it is waited for."""

    options: dict[str, Any] = field(default_factory=dict)
    running: list[Any] = field(default_factory=list)
    most: int = 0
    cancelled: list[Any] = field(default_factory=list)
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayTaskError=KeyError, RayError=ValueError))

    def is_initialized(self) -> bool:
        return True

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda call: SimpleNamespace(remote=lambda *task: self.start(call, task))

    def start(self, call: Any, task: Any) -> Any:
        self.running.append((call, task))
        self.most = max(self.most, len(self.running))
        return self.running[-1]

    def wait(self, running: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return running[:1], running[1:]

    def get(self, one: Any) -> Any:
        self.running.remove(one)
        return one[0](*one[1])

    def cancel(self, one: Any, force: bool) -> None:
        self.cancelled.append(one[1])


def test_ray_gets_as_many_tasks_as_it_may_run_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setattr(workers, "import_engine", lambda module, extra: ray)
    running = RayWorkers(cpus=2, max_workers=2).run(abs, [(1,), (2,), (3,), (4,)], 3e9)
    assert [next(running) for _ in range(2)] == [(0, 1), (1, 2)]
    running.close()  # type: ignore[attr-defined]
    assert ray.most == 2
    assert ray.options == {"num_cpus": 2, "memory": 3_000_000_000, "max_retries": 0}
    assert len(ray.cancelled) == 1


def test_a_process_that_simulates_takes_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "free_nbytes", lambda: 1.2e9)
    assert JoblibWorkers().count(0.0) == 2


def test_an_exception_of_a_clusters_task_is_no_lost_worker(cluster: Cluster) -> None:
    with pytest.raises(FailedJobError, match="RuntimeError: a fault"):
        list(SubmititWorkers("x", 1).run(abs, [(-2,)], 1e9))


@pytest.mark.parametrize(("problem", "told"), [(KeyError(), "KeyError"), (OSError("node 7\nis gone"), "node 7")])
def test_a_lost_task_is_told_in_a_line(problem: Exception, told: str) -> None:
    assert workers._first_line(problem) == told


def test_a_missing_engine_is_an_error_with_the_extra_of_an_installed_package_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs ray: pip install 'tandem-llm\[ray\]'"):
        workers.import_engine("ray", "ray")
