"""The commands of README.md and docs/commands.md plan as they are written."""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api

ROOT = Path(__file__).parents[1]
RUNNER = Path(__file__).parent / "programs" / "run_commands.py"
COMMAND = re.compile(r"^    python -m pipeline ([^#\n]+?)\s*(?:#.*)?$", re.MULTILINE)
NOT_PLANNED = ("--help", "show", "cache", "results", "report", "doctor", "ui")


UNPLANNED = re.compile(r"^    python -m +pipeline (\+policy=[^#\n\\]+?)\s*(?:#.*)?$", re.MULTILINE)
"""A run of a page on what these tests do not have: models, files, a GPU."""
UNPLANNED_PAGES = ("commands", "real_models", "llama_cpp", "gpu", "traces", "onnx", "remote", "training", "profile")


def commands(page: str) -> list[str]:
    return COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))


def planned() -> list[str]:
    found = dict.fromkeys(commands("README.md") + commands("docs/commands.md"))
    return [command for command in found if command.strip() and not command.startswith(NOT_PLANNED)]


def composed() -> list[str]:
    texts = ((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in UNPLANNED_PAGES)
    found = dict.fromkeys(command for text in texts for command in UNPLANNED.findall(text))
    known = planned()
    return [command for command in found if command not in known]


def test_the_docs_show_the_expected_number_of_commands() -> None:
    assert len(commands("README.md")) >= 4
    assert len(planned()) >= 35


def plan_words(command: str) -> list[str]:
    """Its words for a plan, which has no results to export."""
    return [word for word in shlex.split(command) if not word.startswith(("stage=", "export="))]


def test_commands_plan_as_written(tmp_path: Path) -> None:
    """README's, and those of one job; the papers' sweeps plan dozens of jobs and are only composed, below."""
    of_readme = commands("README.md")
    check_plans([command for command in planned() if command in of_readme or not command.startswith("-m ")], tmp_path)


@pytest.mark.slow
def test_sweeps_plan_as_written(tmp_path: Path) -> None:
    check_plans([command for command in planned() if command.startswith("-m ")], tmp_path)


def check_plans(written: list[str], tmp_path: Path) -> None:
    """In one process, to import once."""
    chosen = [words for words in map(plan_words, written) if not words[0].startswith("+experiment=")]
    chosen = [words for words in chosen if find_spec("bitsandbytes") or not any("nf4" in word for word in words)]
    commands = [[*words, "stage=plan", f"outputs={tmp_path}", "tracking.uri=none"] for words in chosen]
    (tmp_path / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    run = [sys.executable, str(RUNNER), str(tmp_path / "commands.json")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=False)
    codes = re.findall(r"^ended (\d+)$", done.stdout, flags=re.MULTILINE)
    assert [(words, code) for words, code in zip(chosen, codes, strict=True) if code != "0"] == [], done.stderr


@pytest.mark.parametrize("command", composed())
def test_what_the_tests_cannot_run_composes(command: str) -> None:
    with api.composed(*shlex.split(command)) as cfg:
        assert "serve" in cfg.stages


@pytest.mark.parametrize(
    "words", [words for words in map(plan_words, planned()) if words[0].startswith("+experiment=")]
)
def test_experiments_of_the_pages_compose(words: list[str]) -> None:
    with api.composed(*words) as cfg:
        assert "serve" in cfg.stages
