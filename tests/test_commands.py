"""The commands of README.md and docs/commands.md plan as they are written."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api
from pipeline.command import main

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^    python -m pipeline ([^#\n]+?)\s*(?:#.*)?$", re.MULTILINE)
NOT_PLANNED = ("--help", "show", "cache")


def commands(page: str) -> list[str]:
    return COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))


def planned() -> list[str]:
    found = dict.fromkeys(commands("README.md") + commands("docs/commands.md"))
    return [command for command in found if command.strip() and not command.startswith(NOT_PLANNED)]


def test_the_pages_show_commands() -> None:
    assert len(commands("README.md")) >= 4
    assert len(planned()) >= 35


def exit_code() -> object:
    try:
        main.main()
    except SystemExit as end:
        return end.code
    return None


@pytest.mark.parametrize("command", planned())
def test_a_command_plans_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "nf4" in command and not find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is not installed: pip install -e '.[quantization]'")
    words = [word for word in shlex.split(command) if not word.startswith("stage=")]
    if words[0].startswith("+experiment="):  # a sweep of a paper plans dozens of jobs: here it is composed
        with api.composed(*words) as cfg:
            assert "serve" in cfg.stages
        return
    plan = ["stage=plan", f"outputs={tmp_path}", "tracking.uri=none"]
    monkeypatch.setattr("sys.argv", ["pipeline", *words, *plan])
    assert exit_code() in (None, 0)
    assert "new" in capsys.readouterr().out
