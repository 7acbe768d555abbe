"""What a contributor reads runs as written: CONTRIBUTING.md, the workflow, the templates."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
RUNNER = Path(__file__).parent / "programs" / "run_commands.py"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
CHOICES = ("outputs/sweeps/DATE/TIME",)
"""What stands for something of the reader's."""


def commands(module: str) -> list[str]:
    found = re.findall(rf"^ +python -m {module} ([^#\n]+?)\s*(?:#.*)?$", PAGE, re.MULTILINE)
    return [command for command in found if not any(word in command for word in CHOICES)]


def read_yaml(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_commands_of_the_pipeline_run_in_the_order_of_the_page(tmp_path: Path) -> None:
    """In one process, to import once; runs are planned."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    words = [shlex.split(command) for command in commands("pipeline")]
    planned = [[*one, "stage=plan"] if one[0].startswith("+") and "stage=plan" not in one else one for one in words]
    unchanged = [one for one in planned if one != ["results", "write"]]
    assert len(unchanged) >= 8
    (tmp_path / "commands.json").write_text(json.dumps(unchanged), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(RUNNER), "commands.json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    codes = re.findall(r"^ended (\d+)$", done.stdout, flags=re.MULTILINE)
    assert [(one, code) for one, code in zip(unchanged, codes, strict=True) if code != "0"] == [], done.stderr
    assert (tmp_path / "my_speeds.csv").exists()


def test_tests_that_are_named_exist() -> None:
    named = [word for command in commands("pytest") for word in shlex.split(command) if word.startswith("tests/")]
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_files_and_folders_that_are_named_exist() -> None:
    named = re.findall(r"`((?:src|conf|tests|docs|\.ci|\.github)/[\w./]*)`", PAGE)
    assert len(named) >= 15
    examples = {name for name in named if re.search(r"NAME|SLOT|PAPER", name)}
    assert [name for name in named if name not in examples and not (ROOT / name).exists()] == []


def test_targets_of_make_that_are_named_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:^    |`)make ([a-z-]+)", PAGE, re.MULTILINE)
    assert {"run", "test", "test-all", "docs", "bench"} <= set(named) <= set(targets)


def test_every_slot_of_a_policy_is_one_of_the_form() -> None:
    slots = [
        next(iter(one)) for one in read_yaml(ROOT / "conf" / "policy" / "sled.yaml")["defaults"] if one != "_self_"
    ]
    (field,) = (field for field in read_yaml(FORMS[-1])["body"] if field["id"] == "slots")
    assert len(slots) == 12
    assert field["attributes"]["description"].startswith(", ".join(slots) + ".")


def test_the_workflow_calls_what_submissions_pass_on_pythons_that_are_allowed() -> None:
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    job = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    pythons = job["strategy"]["matrix"]["python"]
    minors = [f"3.{minor}" for minor in range(8, 20)]
    assert pythons == [version for version in minors if version in SpecifierSet(allowed)]
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_forms_have_what_the_host_wants(form: Path) -> None:
    found = read_yaml(form)
    assert found.keys() >= {"name", "description", "body"}
    identifiers = [field["id"] for field in found["body"]]
    assert len(identifiers) == len(set(identifiers))
    for field in found["body"]:
        assert field["type"] in ("input", "textarea")
        assert field["attributes"]["label"]
    assert any(field.get("validations", {}).get("required") for field in found["body"])


def test_there_is_a_form_for_bugs_policies_and_speeds() -> None:
    assert [form.stem for form in FORMS] == ["bug", "measured_speed", "policy"]
