"""docs/extending.md as written: its files are put into an empty folder and its commands are run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOC = Path(__file__).parents[1] / "docs" / "extending.md"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    python (-m pipeline .*)$", re.MULTILINE)


def commands() -> list[str]:
    return COMMAND.findall(DOC.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for name, text in FILE.findall(DOC.read_text(encoding="utf-8")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "my_lab" / "__init__.py").touch()
    return folder


def test_the_page_shows_what_it_promises() -> None:
    assert len(commands()) == 8
    assert len(FILE.findall(DOC.read_text(encoding="utf-8"))) == 12


@pytest.mark.parametrize("command", commands())
def test_commands_plan_as_written(lab: Path, command: str) -> None:
    done = run(lab, f"{command} stage=plan")
    assert done.returncode == 0, done.stderr
    assert "serve-" in done.stdout


def run(lab: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=lab, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_serve_as_written(lab: Path, command: str) -> None:
    done = run(lab, command)
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
