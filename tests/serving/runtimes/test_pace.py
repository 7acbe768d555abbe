"""A run that is paced to chips names them; any other run names none."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.drivers.real_time import Pace, PacingStats
from serving.progress import silent
from serving.runtimes import grpc
from serving.runtimes.emulated import Emulated, simulate
from serving.runtimes.local import Local
from serving.runtimes.run_results import write_results
from serving.runtimes.runtime import RunResult, Runtime
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import Words, models, queries, setup

BOTH = ["jetson_agx_orin_32gb", "rtx_a6000"]
LOADING = "serving.deployment.model_loading"


def served(runtime: Runtime, policy: str, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    """What the runtime returns of two requests, whose records the simulator makes at once."""
    made, asked = setup(policy), queries(2)
    records = simulate(made, models(), asked)

    async def run(*_: Any) -> Any:
        return records, PacingStats(), {}

    class Group:
        def __init__(self, *_: Any) -> None: ...

        def run(self, *_: Any) -> dict[str, PacingStats]:
            return {"cloud": PacingStats()}

        def collect_records(self, *_: Any) -> Any:
            return records

    monkeypatch.setattr(Local, "run", run)
    monkeypatch.setattr(grpc, "ProcessGroup", Group)
    monkeypatch.setattr(f"{LOADING}.load_models", lambda *_, **__: models())
    monkeypatch.setattr(f"{LOADING}.load_tokenizer", lambda *_: (Words(), 997))
    monkeypatch.setattr(f"{LOADING}.num_layers", lambda *_: LAYERS)
    monkeypatch.setattr(f"{LOADING}.make_queries", lambda *_: asked)
    return runtime.serve(made, "cpu", silent)


@pytest.mark.parametrize("kind", [Local, grpc.Grpc])
@pytest.mark.parametrize(("pace", "paced"), [("hardware", True), ("wall", False)])
def test_a_wall_clock_runtime_is_paced_or_times_this_machine(
    kind: Any, pace: Pace, paced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = served(kind(pace=pace), "synera", monkeypatch)
    assert (found.paced, found.local_timing) == (paced, not paced)


def test_an_emulated_run_is_not_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not served(Emulated(), "synera", monkeypatch).paced


@pytest.mark.parametrize(
    ("policy", "paced", "chips"),
    [
        ("synera", True, BOTH),
        ("cloud_centric", True, BOTH[1:]),
        ("edge_centric", True, BOTH[:1]),
        ("u_shape", True, BOTH),
        ("synera", False, []),
    ],
)
def test_a_paced_run_names_the_chips_that_compute(policy: str, paced: bool, chips: list[str], tmp_path: Path) -> None:
    asked = queries(1)
    records = simulate(setup("edge_centric"), models(), asked)  # whose records they are does not matter here
    result = RunResult(asked, records, Words(), LAYERS, paced=paced)  # type: ignore[arg-type]
    write_results(tmp_path, setup(policy), Local(), result)
    assert json.loads((tmp_path / "meta.json").read_text())["replayed_chips"] == chips
