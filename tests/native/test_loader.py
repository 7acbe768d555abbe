"""When the compiled core is loaded, and when its sources are."""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from native import build, loader
from native.modules import MODULES, source_digests


@cache
def type_digests() -> dict[str, str]:
    return dict(source_digests(build.type_sources()))


def manifest(**changed: Any) -> dict[str, Any]:
    """Of a build from these sources for this Python."""
    digests = {"sources": source_digests(), "types": type_digests()}
    return {"suffix": EXTENSION_SUFFIXES[0], **digests, "files": {}, "annotations": {}, **changed}


def test_a_core_built_from_these_sources_for_this_python_is_loaded() -> None:
    assert loader.find_mismatch(manifest()) == ""


def test_a_core_built_from_other_sources_is_not_loaded() -> None:
    changed = source_digests() | {"serving.messages": "another"}
    assert loader.find_mismatch(manifest(sources=changed)) == "serving.messages changed since it was built"


@pytest.mark.parametrize(
    "module", ["serving.hardware.architecture", "serving.policy.policy", "serving.workload", "serving.no_longer_there"]
)
def test_a_core_built_with_other_types_is_not_loaded(module: str) -> None:
    """A field of a class that is not compiled has another type, which compiled modules check."""
    changed = type_digests() | {module: "another"}
    assert loader.find_mismatch(manifest(types=changed)) == f"{module} changed since it was built"


def test_a_core_with_a_module_that_is_no_longer_compiled_is_not_loaded() -> None:
    name = "serving.hardware.architecture"
    found = loader.find_mismatch(manifest(sources=source_digests((*MODULES, name))))
    assert found == f"{name} changed since it was built"


def test_a_build_that_does_not_say_what_types_it_was_compiled_with_is_not_loaded() -> None:
    earlier = manifest()
    del earlier["types"]
    assert loader.find_mismatch(earlier) == "its manifest.json is damaged, or of an earlier version"


def test_types_are_those_that_compiled_modules_import_directly_or_not() -> None:
    found = build.type_sources()
    assert {"serving.hardware.architecture", "serving.policy.policy", "serving.policy.slots.draft"} <= {*found}
    assert not {*found} & {*MODULES}


def test_a_core_built_for_another_python_is_not_loaded() -> None:
    problem = loader.find_mismatch(manifest(suffix=".cpython-39.so"))
    assert problem.startswith("it was built for .cpython-39.so, this Python loads ")


def test_a_build_that_lacks_a_file_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "LIBRARY", tmp_path)
    found = manifest(files={"serving.messages": "serving.messages.so"})
    assert loader.find_mismatch(found) == "serving.messages.so is missing"
    (tmp_path / "serving.messages.so").touch()
    assert loader.find_mismatch(found) == ""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The manifest's path, in a process that wants the compiled core."""
    monkeypatch.setattr(loader, "MANIFEST", tmp_path / "manifest.json")
    monkeypatch.setattr(loader, "in_use", False)
    for name in ("TANDEM_PURE", "TANDEM_FROZEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "manifest.json"


@pytest.mark.parametrize("text", ["", '{"suffix": ', "[1]", "{}"])
def test_a_damaged_manifest_is_said_and_the_sources_run(
    text: str, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.write_text(text)
    loader.install()
    assert "note: the compiled core is not used: its manifest.json is damaged" in capsys.readouterr().err
    assert (loader.in_use, loader.describe(), build.is_current()) == (False, "pure", False)


def test_without_mypy_a_build_that_is_there_is_current(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise build.metadata.PackageNotFoundError(name)

    kept.write_text(json.dumps(manifest(builder="made elsewhere")))
    assert not build.is_current()
    monkeypatch.setattr(build.metadata, "version", not_installed)
    assert build.is_current()
    kept.write_text(json.dumps(manifest(sources={})))
    assert not build.is_current()


def test_a_core_that_is_to_be_built_again_is_not_asked_whether_it_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    from native import __main__ as command

    monkeypatch.setattr(build, "is_current", lambda: pytest.fail("asked"))
    monkeypatch.setattr(build, "find_obstacle", lambda: "there is no C compiler")
    monkeypatch.setattr(sys, "argv", ["native", "--again"])
    assert command.main() == 0


@pytest.fixture
def outdated(kept: Path) -> None:
    """A build whose sources have changed."""
    kept.write_text(json.dumps(manifest(sources={})))


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
