"""Public data sets below one folder: `data_root`, or TANDEM_DATA."""

import json
import re
from pathlib import Path

import pytest

from pipeline import api
from pipeline.artifacts.stage import Stage
from pipeline.errors import UserError

GSM8K = [json.dumps({"question": f"{i} and {i}?", "answer": f"It is {2 * i}. #### {2 * i}"}) for i in range(9)]
SST2 = ["sentence\tlabel", *(f"film {i}\t{i % 2}" for i in range(9))]
FEW = ("+policy=sled", "model=toy", "workload.num_prompts=2", "workload.dataset.shots=1")


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_DATA", raising=False)


def folder(root: Path) -> Path:
    for name, lines in {"gsm8k/test.jsonl": GSM8K, "sst2/dev.tsv": SST2}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("".join(f"{line}\n" for line in lines))
    return root


def serve(*words: str) -> Stage:
    return api.stages([*FEW, *words])[-1]


@pytest.mark.parametrize("workload", ["gsm8k", "sst2"])
def test_each_data_set_has_its_file_below_the_root(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = folder(tmp_path / "here"), folder(tmp_path / "there")
    found = serve(f"workload={workload}", f"data_root={here}")
    monkeypatch.setenv("TANDEM_DATA", str(there))
    assert serve(f"workload={workload}").digest == found.digest


def test_another_content_is_another_result(tmp_path: Path) -> None:
    here, there = folder(tmp_path / "here"), folder(tmp_path / "there")
    (there / "gsm8k" / "test.jsonl").write_text("\n".join(GSM8K[1:]))
    assert serve("workload=gsm8k", f"data_root={here}").digest != serve("workload=gsm8k", f"data_root={there}").digest


def test_a_path_goes_before_the_root(tmp_path: Path) -> None:
    file = folder(tmp_path / "here") / "gsm8k" / "test.jsonl"
    assert serve("workload=gsm8k", f"workload.path={file}", "data_root=/nowhere").name == "serve"


def test_a_root_without_the_file_names_the_path_that_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"there is nothing at {tmp_path}/gsm8k/test.jsonl")):
        serve("workload=gsm8k", f"data_root={tmp_path}")


def test_without_a_root_a_data_set_that_is_not_on_the_hub_needs_a_file() -> None:
    with pytest.raises(UserError, match=r"SensorQA needs a file: set workload\.path=FILE"):
        serve("workload=sensorqa")
