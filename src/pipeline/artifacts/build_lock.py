"""Build locks: one process builds an artifact at a time. A killed process releases its lock.

A lock has two files. NAME.lock is for the processes of one host, and never deleted: deleting a locked file would let
two processes lock it. NAME.json is the lease of that host's process among hosts that share the store; it also names the
artifacts that the build needs, so that cleaning keeps them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.artifacts.lease import Holder, Lease, is_fresh, read_holder
from pipeline.artifacts.stage import Stage

if TYPE_CHECKING:
    from filelock import BaseFileLock

_RETRY_S = 2.0
_POLL_S = 0.1


@contextmanager
def hold_build_lock(folder: Path, stage: Stage, on_wait: Callable[[str], None]) -> Iterator[Lease]:
    """Holds the build lock of `stage`; calls `on_wait(builder)` for each other process that holds it first.

    Raises LeaseLostError if the block fails since another host has taken the build over meanwhile.
    """
    lock, lease = _lock(folder, stage.key), Lease(_lease_path(folder, stage.key), _needs(stage))
    _acquire(lock, lease, on_wait)
    try:
        _acquire_lease(folder, lease, on_wait)
        with _explaining_loss(lease):
            yield lease
    finally:
        lease.release()
        lock.release()


@contextmanager
def _explaining_loss(lease: Lease) -> Iterator[None]:
    """What fails since another host builds the same artifact is no fault of the build, and no person's Ctrl-C."""
    try:
        yield
    except BaseException:
        lease.check()
        raise


@contextmanager
def registration_lock(folder: Path) -> Iterator[None]:
    """While this lock is held no build starts, so `keys_in_use` stays complete."""
    with _lock(folder, ".registration"):
        yield


def keys_in_use(folder: Path) -> set[str]:
    """Keys of the artifacts that are being built now, here or on other hosts, and of those that the builds need."""
    builders = _builders(folder)
    return set(builders).union(*(holder.needs for holder in builders.values() if holder))


def other_reader(folder: Path, key: str) -> str | None:
    """`process 7, which builds KEY`, if another process builds an artifact that needs this one; else None.

    Takes the registration lock: a lock that another process tries at this moment would count as held.
    """
    with registration_lock(folder):
        builders = _builders(folder)
    for built, holder in builders.items():
        if holder and key in holder.needs and not holder.is_this_process:
            return f"{holder}, which builds {built}"
    return None


def is_being_built(folder: Path, key: str) -> bool:
    """True if there is a lease for building the artifact, also one that a killed process left."""
    return _lease_path(folder, key).exists()


def _builders(folder: Path) -> dict[str, Holder | None]:
    """The holder of each lease, by the key of what it builds; None where the lease cannot be read."""
    held = {path.stem for path in folder.glob("[!.]*.lock") if _is_held(path)}
    held |= {path.stem for path in folder.glob("[!.]*.json") if path.stem not in held and _is_held_elsewhere(path)}
    return {key: read_holder(_lease_path(folder, key)) for key in sorted(held)}


def _acquire(lock: "BaseFileLock", lease: Lease, on_wait: Callable[[str], None]) -> None:
    """Waits for the other processes of this host."""
    from filelock import Timeout

    reported = None
    while True:
        try:
            lock.acquire(timeout=_RETRY_S if reported else 0, poll_interval=_POLL_S)
            return
        except Timeout:
            builder = str(read_holder(lease.path) or "another process")
            if builder != reported:
                on_wait(builder)
            reported = builder


def _acquire_lease(folder: Path, lease: Lease, on_wait: Callable[[str], None]) -> None:
    """Waits for the processes of other hosts."""
    reported = None
    while True:
        with registration_lock(folder):
            holder = lease.try_acquire()
        if holder is None:
            return
        if holder != reported:
            on_wait(str(holder))
        reported = holder
        time.sleep(_RETRY_S)


def _needs(stage: Stage) -> list[str]:
    return [needed.key for needed in stage.ancestors.values()]


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


def _is_held_elsewhere(path: Path) -> bool:
    """True for a lease of another host; one of this host without its lock is what a killed process left."""
    holder = read_holder(path)
    return holder is not None and not holder.is_here and is_fresh(path)


def _lease_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"
