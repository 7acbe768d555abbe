"""Figures of a job's records, kept in a hidden folder of the artifact: another run of the same job copies them."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pipeline.report.figure_look import FigureLook
from serving.metrics import definitions

_KEPT = ".figures"  # hidden, so that it is no part of what identifies an artifact
_SOURCES = (*sorted(Path(__file__).parent.glob("*.py")), Path(definitions.__file__))


def copy_or_draw(artifact: Path, folder: Path, look: FigureLook, draw: Callable[[], object]) -> None:
    """Puts the figures of `artifact` into `folder`: copies of those that this code drew in this look, else new ones.

    Where the artifact's folder cannot be written to, nothing is kept.
    """
    kept = artifact / _KEPT / _digest(look)
    if kept.is_dir():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return
    draw()
    with suppress(OSError):  # a store that others own: the next run draws again
        _keep(folder, kept)


def _keep(folder: Path, kept: Path) -> None:
    """Copies the whole folder before it has its name: another process may look for it."""
    kept.parent.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        shutil.copytree(folder, unfinished, dirs_exist_ok=True)
        os.rename(unfinished, kept)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _digest(look: FigureLook) -> str:
    return hashlib.sha256(f"{look} {_code_digest()}".encode()).hexdigest()[:16]


@cache
def _code_digest() -> str:
    """Of the modules of reports, the metrics' definitions and the library that draws."""
    found = hashlib.sha256(version("matplotlib").encode())
    for file in _SOURCES:
        found.update(file.read_bytes())
    return found.hexdigest()
