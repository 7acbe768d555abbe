"""Sweeps on joblib's, submitit's and Ray's worker processes, each for real; on Ray a host dies in the middle, and an
MLflow server takes the runs of jobs that are said to be on several hosts.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.report import job_result
from pipeline.report.mlflow_store import Tracking
from pipeline.report.sweep_note import read_note
from tests.pipeline.parallel.test_sweeps import EXPERIMENT
from tests.support.ray_cluster import ENVIRONMENT, RayCluster, two_hosts

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
OUTLIVING_ROUNDS = 8_000_000
"""A job's work. One of a second is over before Ray's worker notices that its host is gone, and is not lost."""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A sweep in a process of its own; its stages note each build in `builds`."""
    conf = folder / "conf" / "experiment"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "cheap.yaml").write_text("# @package _global_\n" + yaml.safe_dump(EXPERIMENT, sort_keys=False))
    env = {key: value for key, value in os.environ.items() if key != "TANDEM_PROCESS"}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env |= {"PYTHONPATH": paths, "TANDEM_DATA": str(folder), **ENVIRONMENT}
    command = [sys.executable, "-m", "pipeline", "--config-dir", "conf", "+experiment=cheap", *words]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], sweep: subprocess.Popen[str]) -> None:
    """Raises AssertionError if the sweep ends first."""
    while not condition():
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(timeout=0.1)
            raise AssertionError(sweep.communicate())


def is_complete(folder: Path) -> bool:
    found = job_result.read_result(folder)
    return found is not None and found.status == "complete"


def builds(folder: Path) -> Counter[str]:
    """How often each artifact was built to its end."""
    file = folder / "builds"
    return Counter(file.read_text().splitlines() if file.is_file() else ())


def builders(folder: Path) -> list[tuple[str, str, str]]:
    """What was built to its end, in order: the process, its parent, and which artifact."""
    lines = (folder / "builders").read_text().splitlines()
    return [(process, parent, built) for process, parent, built in (line.split(" ", 2) for line in lines)]


def built_again(folder: Path) -> dict[str, list[str]]:
    """By artifact that was built more than once: was each builder of the host that stayed to the end, or of one that is
    gone?
    """
    noted = builders(folder)
    staying = {process for process, parent, _ in noted if parent == noted[-1][1]}
    makers: dict[str, list[str]] = {}
    for process, _, built in noted:
        makers.setdefault(built, []).append("staying" if process in staying else "gone")
    return {built: by for built, by in makers.items() if len(by) > 1}


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_jobs_share_one_folder_one_table_and_one_mlflow_run(launcher: str, tmp_path: Path) -> None:
    if launcher != "joblib":
        pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[slurm]'")
    sweep = start(tmp_path, "which=2,4", "stages.cheap.x=1.0,2.0", f"hydra/launcher={launcher}")
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    assert "4 of 4 jobs complete" in out
    assert builds(tmp_path) == {"0.5 (2,)": 1, "0.5 (4,)": 1, "1.0 (3,)": 2, "2.0 (3,)": 2}
    folder = tmp_path / "outputs" / "cheap"
    client, experiment = Tracking(outputs=str(tmp_path / "outputs")).connect()
    note = read_note(folder)
    assert note is not None
    assert note.run_id is not None
    assert len(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{note.run_id}'")) == 4
    assert client.get_run(note.run_id).info.status == "FINISHED"


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on loopback with a store of its own; it ends with the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
         "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")],
        cwd=folder, env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(f"{address}/health"), process)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)


def answers(url: str) -> bool:
    """True if the server there answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


@pytest.mark.parametrize("launcher", ["submitit_local", "ray"])
def test_jobs_on_several_hosts_log_to_an_mlflow_server(launcher: str, mlflow_server: str, tmp_path: Path) -> None:
    if launcher == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    else:
        pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[slurm]'")
    words = ("which=2,4", "stages.cheap.x=1.0,2.0", f"hydra/launcher={launcher}", "hydra.launcher.across_hosts=true")
    sweep = start(tmp_path, *words, f"tracking.uri={mlflow_server}")
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    assert "4 of 4 jobs complete" in out
    assert not (tmp_path / "outputs" / "mlflow.db").exists()
    client, experiment = Tracking(uri=mlflow_server, outputs=str(tmp_path / "elsewhere")).connect()
    (parent,) = client.search_runs([experiment], "tags.`tandem.kind` = 'sweep'")
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert [run.info.status for run in (parent, *children)] == ["FINISHED"] * 5
    note = read_note(tmp_path / "outputs" / "cheap")
    assert note is not None
    assert note.run_id == parent.info.run_id


def test_an_interrupted_sweep_ends_its_workers_and_goes_on(tmp_path: Path) -> None:
    words = ("stages.cheap.x=range(1,9)", "+stages.cheap.rounds=3000000", "hydra/launcher=joblib", "tracking.uri=none")
    sweep = start(tmp_path, *words)
    wait_until(lambda: any(is_complete(tmp_path / "outputs" / "cheap" / str(n)) for n in range(8)), sweep)
    sweep.send_signal(signal.SIGTERM)
    out, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, out + err
    assert "The same command goes on" in out
    again = start(tmp_path, *words)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, out + err
    assert "complete since an earlier command" in out
    assert "8 of 8 jobs complete" in out
    assert len(builds(tmp_path)) == 9


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    with two_hosts() as started:
        yield started


def test_a_host_of_a_ray_cluster_dies_and_every_job_is_there(cluster: RayCluster, tmp_path: Path) -> None:
    sweep = start(
        tmp_path, "stages.cheap.x=range(1,41)", f"+stages.cheap.rounds={OUTLIVING_ROUNDS}", "hydra/launcher=ray",
        f"hydra.launcher.address={cluster.address}", "tracking.uri=none",
    )  # fmt: skip
    # A job whose artifact was just built is nearly over, and would not be lost with its host.
    second = str(cluster.second_host)
    wait_until(lambda: len(builds(tmp_path)) > 9 and builders(tmp_path)[-1][1] != second, sweep)
    cluster.kill_second_host()
    out, err = sweep.communicate(timeout=400)
    assert sweep.returncode == 0, out + err
    assert "40 of 40 jobs complete" in out
    assert "lost their worker and start again" in out
    assert len(builds(tmp_path)) == 41
    assert len({process for process, _, _ in builders(tmp_path)}) <= 2, "each of the two hosts keeps its process"
    assert all(by == ["gone", "staying"] for by in built_again(tmp_path).values()), "first by the host that died"
    assert builds(tmp_path).total() <= 42, "more was built twice than the one job that the host was about to finish"
