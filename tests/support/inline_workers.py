"""Workers of a sweep that are this process: they can lose tasks as a dying host does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.parallel.workers import LostTask, WorkerCall


@dataclass(frozen=True)
class InlineWorkers:
    """Loses tasks: each entry of `lost` names one by its function and its stage or first job; `half_done`: after its
    work.
    """

    batch: int = 1
    half_done: bool = False
    lost: ClassVar[list[tuple[str, Any]]] = []
    calls: ClassVar[list[tuple[str, list[Any]]]] = []

    def describe(self, job_nbytes: float) -> str:
        return f"here, {job_nbytes > 0}"

    def batch_size(self, num_jobs: int) -> int:
        return self.batch

    def prepare(self, call: WorkerCall, task: tuple[Any, ...]) -> Iterator[Any]:
        return iter([call(*task)])

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        self.calls.append((call.__name__, [_name(task[-1]) for task in tasks]))
        for index in reversed(range(len(tasks))):  # tasks need not end in order
            name = _name(tasks[index][-1])
            task = (call.__name__, name[0] if isinstance(name, list) else name)
            lost = task in self.lost
            result = None if lost and not self.half_done else call(*tasks[index])
            if lost:
                self.lost.remove(task)
            yield index, LostTask("its host died") if lost else result


def _name(item: Any) -> Any:
    return item.name if hasattr(item, "name") else [cell.number for cell in item]
