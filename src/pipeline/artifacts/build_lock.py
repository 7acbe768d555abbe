"""Build locks: one process builds an artifact at a time. A killed process releases its lock.

A lock has two files. NAME.lock is never deleted: deleting a locked file would let two processes lock it. NAME.json
names the process that holds the lock and the artifacts that it needs, so that cleaning keeps them.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import fingerprint
from pipeline.artifacts.stage import Stage

if TYPE_CHECKING:
    from filelock import BaseFileLock

_RETRY_S = 2.0
_POLL_S = 0.1


@contextmanager
def hold_build_lock(folder: Path, stage: Stage, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds the build lock of `stage`; calls `on_wait(builder)` for each other process that holds it first."""
    lock, note = _lock(folder, stage.key), _holder_path(folder, stage.key)
    _acquire(lock, note, on_wait)
    try:
        with registration_lock(folder):
            needs = [needed.key for needed in stage.ancestors.values()]
            fingerprint.write_atomic(note, json.dumps({"pid": os.getpid(), "needs": needs}))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


@contextmanager
def registration_lock(folder: Path) -> Iterator[None]:
    """While this lock is held no build starts, so `keys_in_use` stays complete."""
    with _lock(folder, ".registration"):
        yield


def keys_in_use(folder: Path) -> set[str]:
    """Keys of the artifacts that are being built now, and of those that the builds need."""
    held = [path for path in folder.glob("[!.]*.lock") if _is_held(path)]
    needs = (_read_holder(_holder_path(folder, path.stem)).get("needs", ()) for path in held)
    return {path.stem for path in held}.union(*needs)


def _acquire(lock: "BaseFileLock", holder_path: Path, on_wait: Callable[[str], None]) -> None:
    from filelock import Timeout

    reported = None
    while True:
        try:
            lock.acquire(timeout=_RETRY_S if reported else 0, poll_interval=_POLL_S)
            return
        except Timeout:
            pid = _read_holder(holder_path).get("pid")
            builder = f"process {pid}" if pid else "another process"
            if builder != reported:
                on_wait(builder)
            reported = builder


def _lock(folder: Path, name: str) -> "BaseFileLock":
    from filelock import FileLock

    return FileLock(folder / f"{name}.lock")


def _is_held(path: Path) -> bool:
    from filelock import Timeout

    lock = _lock(path.parent, path.stem)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _holder_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _read_holder(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
