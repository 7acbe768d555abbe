"""The commands of README.md and docs/commands.md plan as they are written."""

import re
import shlex
from pathlib import Path

import pytest

from pipeline.command import main

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^    python -m pipeline ([^#\n]+?)\s*(?:#.*)?$", re.MULTILINE)
NOT_PLANNED = ("--help", "show", "cache")


def commands(page: str) -> list[str]:
    return COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))


def planned() -> list[str]:
    found = dict.fromkeys(commands("README.md") + commands("docs/commands.md"))
    return [command for command in found if not command.startswith(NOT_PLANNED)]


def test_the_pages_show_commands() -> None:
    assert len(commands("README.md")) >= 4
    assert len(planned()) >= 35


@pytest.mark.parametrize("command", planned())
def test_a_command_plans_as_written(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for word in shlex.split(command) if not word.startswith("stage=")]
    plan = ["stage=plan", f"outputs={tmp_path}", "tracking.uri=none"]
    monkeypatch.setattr("sys.argv", ["pipeline", *words, *plan])
    try:
        main.main()
    except SystemExit as end:
        assert not end.code
