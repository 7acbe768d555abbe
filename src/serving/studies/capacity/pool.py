"""Independent pieces of work in several processes, each kept as soon as it is done."""

import json
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from serving.progress import Progress

T = TypeVar("T")
Plain = dict[str, Any]
"""What JSON can hold."""


def in_all(
    tasks: Sequence[T],
    names: Sequence[str],
    work: Callable[[T], Plain],
    kept: Path,
    progress: Progress,
    processes: int | None,
) -> list[Plain]:
    """What `work` makes of each task, in their order; `kept` is a folder that holds what was done before.

    `processes` None: as many as there are CPUs. Passes through what `work` raises, and KeyboardInterrupt.
    """
    files = [kept / f"{i}.json" for i in range(len(tasks))]
    left = [i for i, file in enumerate(files) if not file.is_file()]
    for done, (i, result) in enumerate(_computed(tasks, left, work, processes), len(tasks) - len(left) + 1):
        partial = files[i].with_suffix(".part")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.replace(files[i])
        progress(done, len(tasks), names[i])
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _computed(
    tasks: Sequence[T], left: Sequence[int], work: Callable[[T], Plain], processes: int | None
) -> Iterator[tuple[int, Plain]]:
    workers = min(len(left), processes or os.cpu_count() or 1)
    if workers <= 1:
        yield from ((i, work(tasks[i])) for i in left)
        return
    with mp.get_context("spawn").Pool(workers, _ignoring_interrupts) as pool:
        yield from pool.imap_unordered(_Numbered(work), [(i, tasks[i]) for i in left])


class _Numbered:
    def __init__(self, work: Callable[[Any], Plain]) -> None:
        self._work = work

    def __call__(self, task: tuple[int, Any]) -> tuple[int, Plain]:
        return task[0], self._work(task[1])


def _ignoring_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends its pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
