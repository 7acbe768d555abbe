"""Builds a stage and the missing stages that it needs; each is built by one process only."""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from pipeline.artifacts.build_lock import hold_build_lock, is_being_built, other_reader
from pipeline.artifacts.estimates import PeakMemory, measure_speed
from pipeline.artifacts.lease import Lease, LeaseLostError
from pipeline.artifacts.progress_display import ProgressCallback, StageObserver
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store, StoreError

StageCall = Callable[[Stage, Path, Path, Mapping[str, Path], ProgressCallback], None]
"""Run a stage's target: `call(stage, out, work, inputs, progress)` fills `out` and may keep state in `work`."""

_DISK_FULL_TEXTS = (os.strerror(errno.ENOSPC), f"(os error {errno.ENOSPC})")
_MIN_FREE_NBYTES = 100_000
_DISK_FULL_ERRNOS = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass
class Runner:
    """Builds what is missing in `store` by `call_stage`, and tells `observer`.

    Stages named in `force`, and what is built from them, are built again from the start, once for this runner.
    `on_built` is called with each new artifact and its folder before anything else happens.
    """

    store: Store
    call_stage: StageCall
    observer: StageObserver
    force: frozenset[str] = frozenset()
    on_built: Callable[[Stage, Path], None] = lambda *_: None
    _built: set[str] = field(default_factory=set, init=False)

    @property
    def built(self) -> frozenset[str]:
        """Digests of the artifacts that this runner built."""
        return frozenset(self._built)

    def ensure_built(self, stage: Stage) -> Path:
        """The folder of the whole artifact, built now if need be.

        The build lock of `stage` is held while its inputs are built. Locks are taken from a stage to its ancestors and
        never back, so two processes cannot wait for each other. Raises StoreError if the store cannot be written;
        passes through what the stage raises, KeyboardInterrupt included, with the state kept for the next run.
        """
        if self._needs_build(stage):
            if _is_helper():
                self._help(stage)
            self.store.ensure_writable()
            with self._hold_lock(stage) as lease:
                if self._needs_build(stage):
                    self._check_replaceable(stage)
                    inputs = {name: self._ensure_readable(needed) for name, needed in stage.read_inputs.items()}
                    self._build(stage, inputs, lease)
        return self.store.path(stage)

    def _ensure_readable(self, stage: Stage) -> Path:
        """As `ensure_built`, for a build that reads the artifact: waits for a process that builds it again with force.

        The build that reads has its lease by now, so a force that begins later finds it and is refused.
        """
        if is_being_built(self.store.locks, stage.key) and not self._needs_build(stage):
            with self._hold_lock(stage):
                pass
        return self.ensure_built(stage)

    def _hold_lock(self, stage: Stage) -> AbstractContextManager[Lease]:
        return hold_build_lock(self.store.locks, stage, partial(self.observer.waiting_for, stage))

    def _needs_build(self, stage: Stage) -> bool:
        return stage.digest not in self._built and (self._is_forced(stage) or not self.store.has(stage))

    def _help(self, stage: Stage) -> NoReturn:
        """Runs the missing stage, which the first process builds now, in a temporary folder; ends this process."""
        if missing := next((one for one in stage.read_inputs.values() if self._needs_build(one)), None):
            self._help(missing)
        with TemporaryDirectory(prefix="tandem-helper-") as out:
            state = self.store.root / ".work" / stage.key / "state"
            inputs = {name: self.store.path(needed) for name, needed in stage.read_inputs.items()}
            self.call_stage(stage, Path(out), state, inputs, lambda *_: None)
        sys.exit(0)

    def _is_forced(self, stage: Stage) -> bool:
        return is_forced(stage, self.force)

    def _check_replaceable(self, stage: Stage) -> None:
        """A process that reads an artifact would go on with files of two builds."""
        reader = other_reader(self.store.locks, stage.key) if self.store.has(stage) else None
        if reader:
            raise StoreError(
                f"force: {stage.key} is being read by {reader}. {stage.key} was not replaced; run the same command "
                "again when that process has ended."
            )

    def _build(self, stage: Stage, inputs: Mapping[str, Path], lease: Lease) -> None:
        lease.check()
        self._move_damaged(stage)
        begun_s = time.monotonic()
        with self._build_attempt(stage, lease):
            out, state = self.store.workspace(stage, lease.token, clear_state=self._is_forced(stage))
            self.observer.stage_started(stage)
            memory = PeakMemory()
            memory.reset()
            with _own_processes():
                self.call_stage(stage, out, state, inputs, self.observer.progress)
            lease.check()
            artifact = self.store.commit(stage, out, time.monotonic() - begun_s, memory.read_nbytes())
        self.on_built(stage, artifact)
        measure_speed(self.store.root)
        self._built.add(stage.digest)
        self.observer.stage_finished(stage, time.monotonic() - begun_s)

    def _move_damaged(self, stage: Stage) -> None:
        if problem := self.store.find_damage(stage):
            aside = self.store.move_to_damaged(stage)
            self.observer.note(
                f"{stage.key} is damaged: {problem}. It was moved to {aside} and is built again; nothing needs to be "
                "done, but if this happens twice, look for a failing disk or a program that writes below the store."
            )

    @contextmanager
    def _build_attempt(self, stage: Stage, lease: Lease) -> Iterator[None]:
        """Removes a failed attempt, reports what is kept, and explains a full disk. Another host's attempt stays."""
        try:
            yield
        except BaseException as problem:
            lease.check()
            if isinstance(problem, Exception) and not self._is_forced(stage) and self.store.has(stage):
                raise _built_elsewhere_error(stage) from problem
            kept = self.store.discard_attempt(stage)
            message = _failure_message(isinstance(problem, KeyboardInterrupt), kept)
            self.observer.stage_failed(stage, message)
            if isinstance(problem, KeyboardInterrupt):
                problem.add_note(message)  # by which others know that it was said
            if _is_disk_full(problem, self.store):
                raise _disk_full_error(self.store, stage) from problem
            raise


def is_forced(stage: Stage, names: Collection[str]) -> bool:
    """True if the stage has one of the names, or is built from one that has."""
    return stage.name in names or any(needed.name in names for needed in stage.ancestors.values())


_RANK = "LOCAL_RANK"
_DISTRIBUTED = (_RANK, "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What Lightning sets in the process that starts the others of a distributed training."""


def _is_helper() -> bool:
    """True in a process that Lightning started with this command, to train beside the first process."""
    return int(os.environ.get(_RANK, 0)) > 0


@contextmanager
def _own_processes() -> Iterator[None]:
    """Ends the process group that a stage leaves: with it, the next stage's training would start no processes.

    A stage that trains several times keeps its processes from one training to the next.
    """
    before = {name for name in _DISTRIBUTED if name in os.environ}
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name in set(_DISTRIBUTED) - before:
            os.environ.pop(name, None)


def _is_disk_full(problem: BaseException, store: Store) -> bool:
    """True if a write failed for lack of space.

    Libraries that write themselves (safetensors, torch, pyarrow) raise errors of their own: these are known by the
    system's words, or by a disk without space.
    """
    if isinstance(problem, OSError) and problem.errno in _DISK_FULL_ERRNOS:
        return True
    if isinstance(problem, Exception) and any(text in str(problem) for text in _DISK_FULL_TEXTS):
        return True
    return isinstance(problem, RuntimeError | OSError) and shutil.disk_usage(store.root).free < _MIN_FREE_NBYTES


def _failure_message(interrupted: bool, kept: bool) -> str:
    own = "what it has done so far and all finished stages are kept" if kept else "all finished stages are kept"
    return f"{'interrupted' if interrupted else 'failed'}; {own}, and the same command goes on from there."


def _built_elsewhere_error(stage: Stage) -> LeaseLostError:
    """Its folder is gone, too, which is what the build fails with."""
    return LeaseLostError(
        f"{stage.key} was built by another host meanwhile: this process slept longer than its lease. The same command "
        "goes on from there."
    )


def _disk_full_error(store: Store, stage: Stage) -> StoreError:
    return StoreError(
        f"no space left on the disk of {store.root} while building {stage.key}. Free some (`python -m "
        "pipeline cache list` shows what is stored, `cache clean` removes it) and run the same command again."
    )
