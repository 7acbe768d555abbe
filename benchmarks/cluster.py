"""A sweep of simulated cells on a local Ray cluster of two hosts, one of which is killed in the middle.

`python -m benchmarks.cluster [cells=300] [prompts=40]`: each cell is a job of `runtime=simulated` on the toy pair;
all cells share its models and recorded tokens. It needs the extra `ray`. Printed are the cells that are there, the
tasks that were started again, the builds of each artifact, and seconds. Exit status 1 if a cell is missing, or an
artifact was built twice by hosts that lived.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.build_log import BuildLog, Note
from pipeline.report.job_result import JOB_FILE, read_result
from tests.support.ray_cluster import ENVIRONMENT, RayCluster, two_hosts

ROOT = Path(__file__).parents[1]
DEFAULTS = {"cells": 300, "prompts": 40}
POLL_S = 0.2


def main(words: Sequence[str] = ()) -> bool:
    given = _options(words)
    if not find_spec("ray"):
        print("cluster: skipped, Ray is not installed: pip install -e '.[ray]'")
        return True
    with tempfile.TemporaryDirectory() as folder, two_hosts() as cluster:
        builds, began_s = BuildLog(Path(folder) / "builds"), time.perf_counter()
        printed, complete = _sweep(Path(folder), cluster, given, builds.file)
        return _report(given["cells"], complete, printed, builds, cluster, time.perf_counter() - began_s)


def _options(words: Sequence[str]) -> dict[str, int]:
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(given.keys() - DEFAULTS.keys()):
        raise SystemExit(f"cluster: not known: {', '.join(unknown)}; known: {'=, '.join(DEFAULTS)}=")
    return DEFAULTS | {name: int(value) for name, value in given.items()}


def _sweep(folder: Path, cluster: RayCluster, given: Mapping[str, int], builds: Path) -> tuple[str, int]:
    """What the sweep printed, and how many cells are complete; the second host is killed when half of them are."""
    cells = folder / "cells"
    command = [
        sys.executable, "-m", "pipeline", "-m", "+policy=synera", "model=toy", "workload=smoke", "runtime=simulated",
        f"workload.num_prompts={given['prompts']}", "workload.reuse_prompts=true", f"seed=range({given['cells']})",
        "hydra/launcher=ray", f"hydra.launcher.address={cluster.address}",
        "hydra.launcher.workers._target_=benchmarks.build_log.NotingRayWorkers",
        f"+hydra.launcher.workers.file={builds}", f"hydra.sweep.dir={cells}", f"outputs={folder / 'outputs'}",
        "tracking.uri=none",
    ]  # fmt: skip
    output = folder / "output"
    with output.open("w", encoding="utf-8") as file:
        sweep = subprocess.Popen(command, cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=file, stderr=file)
        while sweep.poll() is None and _num_complete(cells) < given["cells"] // 2:
            time.sleep(POLL_S)
        cluster.kill_second_host()
        sweep.wait()
    return output.read_text(encoding="utf-8"), _num_complete(cells)


def _num_complete(cells: Path) -> int:
    found = (read_result(file.parent) for file in cells.glob(f"*/{JOB_FILE}"))
    return sum(result is not None and result.status == "complete" for result in found)


def _report(cells: int, complete: int, printed: str, builds: BuildLog, cluster: RayCluster, seconds: float) -> bool:
    lost = sum(map(int, re.findall(r"^(\d+) tasks lost their worker and start again$", printed, re.MULTILINE)))
    started, finished = builds.counts("started"), builds.counts("finished")
    print(
        f"cluster: {complete} of {cells} cells complete in {seconds:.0f} s, one of two hosts killed in the middle; "
        f"{lost} tasks lost and started again; {len(started)} artifacts: {sum(started.values())} builds started, "
        f"{sum(finished.values())} finished, {_num_of_host(builds.notes(), cluster.second_host)} of the killed host"
    )
    again = {key: [note for note in builds.notes() if note.key == key] for key, count in started.items() if count > 1}
    faults = [key for key, notes in again.items() if not is_of_killed_host(key, notes, cluster.second_host)]
    if complete < cells:
        print(printed)
    return complete == cells and not faults and set(finished) == set(started)


def _num_of_host(notes: Sequence[Note], host: int) -> int:
    return sum(note.event == "finished" and note.parent == host for note in notes)


def is_of_killed_host(key: str, notes: Sequence[Note], killed: int) -> bool:
    """Prints the host of each build; True if all but the last one were the killed host's, and only that one ended."""
    starts = [note for note in notes if note.event == "started"]
    ended = {note.process for note in notes if note.event == "finished"}
    for note in starts:
        host = "the killed host" if note.parent == killed else "the other host"
        print(
            f"  {key}: started by process {note.process} of {host}, {'' if note.process in ended else 'not '}finished"
        )
    return all(note.parent == killed and note.process not in ended for note in starts[:-1])


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
