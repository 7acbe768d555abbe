"""What is missing to compile the core is named, the compiler first: without one the extra would be of no use."""

import shutil
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from native import build


def without(monkeypatch: pytest.MonkeyPatch, compiler: bool, extra: bool, headers: Path) -> None:
    find_spec = util.find_spec

    def which(_: str) -> str | None:
        return "/usr/bin/cc" if compiler else None

    def find(name: str) -> Any:
        return find_spec(name) if extra or name not in ("mypyc", "setuptools") else None

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(util, "find_spec", find)
    monkeypatch.setattr(build.sysconfig, "get_path", lambda _: str(headers))


@pytest.mark.parametrize(
    ("compiler", "extra", "headers", "said"),
    [
        (False, False, False, "there is no C compiler"),
        (True, False, False, "the extra 'compiled', are not installed"),
        (True, True, False, "Python's headers are not installed"),
        (True, True, True, ""),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: bool, extra: bool, headers: bool, said: str
) -> None:
    if headers:
        (tmp_path / "Python.h").touch()
    without(monkeypatch, compiler, extra, tmp_path)
    found = build.find_obstacle()
    assert said in found
    assert bool(found) == bool(said)
