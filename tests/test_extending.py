"""docs/extending.md and exhibits.md as written: their files are put into an empty folder and their commands are run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    python (-m pipeline .*)$", re.MULTILINE)


def text() -> str:
    return "".join((DOCS / name).read_text(encoding="utf-8") for name in ("extending.md", "exhibits.md"))


def commands() -> list[str]:
    return COMMAND.findall(text())


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for name, content in FILE.findall(text()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "my_lab" / "__init__.py").touch()
    return folder


def test_the_page_shows_what_it_promises() -> None:
    assert len(commands()) == 10
    assert len(FILE.findall(text())) == 17


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
