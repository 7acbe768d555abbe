"""`make run` where Python is not one that the project runs on, or makes no environments; uv finds what pip finds; what
`make test-all` says last.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native import build

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="this machine has no make")

OLD = """\
case "$1" in --version) echo "Python 3.10.13";; *) exit 1;; esac
"""
WITHOUT_PIP = """\
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin" && touch "$3/bin/python" && chmod +x "$3/bin/python"
echo "The virtual environment was not created successfully because ensurepip is not available." >&2
exit 1
"""
PIP = r"""
[ "$3" = install ] && echo "pip $*"
[ "$3" = config ] && printf '%s\n' "global.index-url='http://b'" ":env:.index-url='http://a'" \
  ":env:.find-links='/one /two'" "global.extra-index-url='\nhttp://c\nhttp://d'"
true
"""
UV = """\
echo "uv $UV_DEFAULT_INDEX $UV_INDEX $UV_FIND_LINKS"
"""


def make_environment(folder: Path, script: str) -> tuple[int, str]:
    """The exit status and output of `make` for a new environment, by a Python that is this shell script."""
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{script}")
    python.chmod(0o755)
    words = ("make", "-s", f"PYTHON={python}", f"VENV={folder}/env", f"{folder}/env/.installed")
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return told.returncode, told.stdout + told.stderr


def test_an_old_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    code, told = make_environment(tmp_path, OLD)
    assert code == 2
    assert f"error: Python 3.11, 3.12 or 3.13 is needed, and {tmp_path}/python3 is Python 3.10.13." in told
    assert "make PYTHON=" in told
    assert not (tmp_path / "env").exists()


def test_half_an_environment_is_removed(tmp_path: Path) -> None:
    code, told = make_environment(tmp_path, WITHOUT_PIP)
    assert (code, "ensurepip is not available" in told) == (2, True)
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize("status", [0, 1])
def test_uv_finds_packages_where_pip_does_and_pip_goes_on_where_uv_fails(tmp_path: Path, status: int) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for name, script in (("python", PIP), ("uv", f"{UV}exit {status}")):
        (tmp_path / "env" / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "env" / "bin" / name).chmod(0o755)
    code, told = make_environment(tmp_path, "exit 0")
    assert code == 0
    assert "uv http://a  http://c http://d /one,/two\n" in told
    assert ("pip -m pip install" in told) == bool(status)


def test_make_and_pyproject_ask_for_the_same_python() -> None:
    makefile, project = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml"))
    assert "(3, 11) <= sys.version_info < (3, 14)" in makefile
    assert 'requires-python = ">=3.11,<3.14"' in project


@pytest.mark.parametrize("pure", [False, True])
def test_the_last_line_of_all_tests_says_which_core_nodes_ran_on(pure: bool) -> None:
    planned = subprocess.run(
        ("make", "--no-print-directory", "-n", f"VENV={sys.prefix}", "test-all"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    last = planned.stdout.splitlines()[-1]
    assert "native" in last
    assert "pytest" not in last
    env = {**os.environ, "TANDEM_PURE": str(int(pure))}
    told = subprocess.run(last, shell=True, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    expected = "compiled" if build.is_current() and not pure else "pure"
    assert told.stdout == f"nodes ran on this core: {expected}\n"
