"""`python -m pipeline trace`: export, show, import."""

from pathlib import Path

import pytest

from pipeline.command import trace as command
from pipeline.errors import UserError
from serving.outcomes.trace import TOKENIZER_DIR, save_trace
from tests.serving.outcomes.made_up_trace import trace
from tests.support.tiny_tokenizers import byte_level


def test_the_command_exports_shows_and_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    save_trace(recorded, trace())
    byte_level().save_pretrained(recorded / TOKENIZER_DIR)
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
