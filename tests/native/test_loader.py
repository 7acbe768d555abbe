"""When the compiled core is loaded, and when its sources are."""

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from native import build, loader
from native.modules import source_digests


def test_a_core_built_from_these_sources_for_this_python_is_loaded() -> None:
    assert loader.find_mismatch({"suffix": EXTENSION_SUFFIXES[0], "sources": source_digests()}) == ""


def test_a_core_built_from_other_sources_is_not_loaded() -> None:
    changed = source_digests() | {"serving.messages": "another"}
    problem = loader.find_mismatch({"suffix": EXTENSION_SUFFIXES[0], "sources": changed})
    assert problem == "serving.messages changed since it was built"


def test_a_core_built_for_another_python_is_not_loaded() -> None:
    problem = loader.find_mismatch({"suffix": ".cpython-39.so", "sources": source_digests()})
    assert problem.startswith("it was built for .cpython-39.so, this Python loads ")


@pytest.fixture
def outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose sources have changed."""
    manifest = {"suffix": EXTENSION_SUFFIXES[0], "sources": {}, "files": {}, "annotations": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(loader, "MANIFEST", tmp_path / "manifest.json")
    monkeypatch.setattr(loader, "in_use", False)
    for name in ("TANDEM_PURE", "TANDEM_FROZEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("outdated")
def test_an_outdated_core_is_said_and_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.meta_path)
    loader.install()
    assert "note: the compiled core is not used: serving.messages, " in capsys.readouterr().err
    assert (loader.in_use, sys.meta_path) == (False, before)


@pytest.mark.usefixtures("outdated")
@pytest.mark.parametrize("variable", ["TANDEM_PURE", "TANDEM_FROZEN"])
def test_the_pure_build_can_be_demanded(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "1")
    loader.install()
    assert capsys.readouterr().err == ""
    assert not loader.in_use


def test_without_a_compiler_the_command_says_so_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from native import __main__ as command

    monkeypatch.setattr(build, "is_current", lambda: False)
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["native"])
    assert command.main() == 0
    assert "the core runs as plain Python: there is no C compiler" in capsys.readouterr().out


def test_importing_serving_loads_nothing_more_than_the_manifest() -> None:
    code = "import serving, sys; print(*(m for m in ('mypyc', 'setuptools', 'hashlib', 'numpy') if m in sys.modules))"
    env = {**os.environ, "TANDEM_FROZEN": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() in ([], ["hashlib"])
