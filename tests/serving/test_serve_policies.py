"""Several policies on one setup: the order of the runs, and what each leaves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest

from serving import stages
from serving.deployment.setup import Setup
from serving.drivers.observer import Observer
from serving.progress import Progress
from serving.runtimes.emulated import simulate
from serving.runtimes.local import Local
from serving.runtimes.runtime import RunResult
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import Words, models, queries, setup
from tests.support.policies import policy

POLICIES = {"sled": policy("sled"), "alone": policy("edge_centric")}


@dataclass(frozen=True)
class Instant:
    """A runtime that serves one request at once, and remembers which policies it served."""

    served: list[str] = field(default_factory=list)
    described = "at once"
    detail = False

    def check(self, setup: Setup) -> None: ...

    def serve(
        self,
        setup: Setup,
        accelerator: str,
        progress: Progress,
        observers: Sequence[Observer] = (),
    ) -> RunResult:
        self.served.append(setup.policy.name)
        progress(1, 1, "done")
        asked = queries(1)
        return RunResult(asked, simulate(setup, models(), asked), Words(), LAYERS)  # type: ignore[arg-type]


def test_policies_take_turns_and_every_run_has_a_folder(tmp_path: Path) -> None:
    runtime, told = Instant(), list[str]()
    stages.serve_policies(
        tmp_path, progress=lambda *each: told.append(each[2]), setup=setup("synera"), policies=POLICIES,
        runtime=runtime, repeats=2,
    )  # fmt: skip
    assert runtime.served == ["sled", "alone"] * 2
    assert told[0] == "sled, run 1 of 2: done"
    assert told[-1] == "alone, run 2 of 2: done"
    runs = json.loads((tmp_path / stages.RUNS_FILE).read_text())
    assert [(run["policy"], run["repeat"]) for run in runs] == [("sled", 0), ("alone", 0), ("sled", 1), ("alone", 1)]
    assert all(datetime.fromisoformat(run["began"]) <= datetime.fromisoformat(run["ended"]) for run in runs)
    for name in POLICIES:
        for repeat in ("0", "1"):
            assert json.loads((tmp_path / name / repeat / "meta.json").read_text())["policy"] == name


def test_unlike_threads_need_a_process_for_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.workload.workload.Workload.check_dataset", lambda self, **_: None)
    made = setup("sled")
    unlike = replace(made, pair=replace(made.pair, cloud=replace(made.pair.cloud, threads=2)))
    stages.check_serve_policies(setup=made, policies=POLICIES, runtime=Local())
    stages.check_serve_policies(setup=unlike, policies=POLICIES, runtime=Local("hardware"))
    with pytest.raises(ValueError, match=r"model.device.threads is 1 and model.cloud.threads 2.*runtime=grpc"):
        stages.check_serve_policies(setup=unlike, policies=POLICIES, runtime=Local())
