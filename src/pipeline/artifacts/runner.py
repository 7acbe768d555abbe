"""Realise a stage: walk back from what is asked, stop at what exists, build what is missing, once among processes."""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.artifacts.build_lock import claim
from pipeline.artifacts.progress_display import Announce, Progress
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store, StoreError

Call = Callable[[Stage, Path, Path, Mapping[str, Path], Progress], None]
"""Run a stage's target: `call(stage, out, work, inputs, progress)` fills `out` and may keep state in `work`."""

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass
class Runner:
    """Builds what is missing in `store` by `call`, and tells `announce`.

    Stages named in `force`, and what is built from them, are built again from the start, once for this runner.
    """

    store: Store
    call: Call
    announce: Announce
    force: frozenset[str] = frozenset()
    _built: set[str] = field(default_factory=set, init=False)

    @property
    def built(self) -> frozenset[str]:
        """Digests of what this runner built; the rest was there."""
        return frozenset(self._built)

    def realise(self, stage: Stage) -> Path:
        """The folder of the whole artifact, built now if need be.

        A claim on `stage` is held while its inputs are realised: claims go from a stage to its ancestors and never
        back, so two processes cannot wait for each other. Raises StoreError if the store cannot be written; passes
        through what the stage raises, KeyboardInterrupt included, with the state kept for the next run.
        """
        if self._is_due(stage):
            self.store.prepare()
            with claim(self.store.locks, stage, lambda who: self.announce.waiting(stage, who)):
                if self._is_due(stage):
                    self._build(stage, {name: self.realise(needed) for name, needed in stage.inputs.items()})
        return self.store.path(stage)

    def _is_due(self, stage: Stage) -> bool:
        return stage.digest not in self._built and (self._is_forced(stage) or not self.store.has(stage))

    def _is_forced(self, stage: Stage) -> bool:
        return not self.force.isdisjoint({stage.name, *(needed.name for needed in stage.ancestors.values())})

    def _build(self, stage: Stage, inputs: Mapping[str, Path]) -> None:
        self._set_aside_damaged(stage)
        begun_s = time.monotonic()
        with self._attempt(stage):
            out, state = self.store.workspace(stage, afresh=self._is_forced(stage))
            self.announce.stage_begin(stage)
            self.call(stage, out, state, inputs, self.announce.progress)
            self.store.commit(stage, out, time.monotonic() - begun_s)
        self._built.add(stage.digest)
        self.announce.stage_end(stage, time.monotonic() - begun_s)

    def _set_aside_damaged(self, stage: Stage) -> None:
        if problem := self.store.damage(stage):
            aside = self.store.set_aside(stage)
            self.announce.note(
                f"{stage.key} is damaged: {problem}. It was moved to {aside} and is built again; nothing needs to be "
                "done, but if this happens twice, look for a failing disk or a program that writes below the store."
            )

    @contextmanager
    def _attempt(self, stage: Stage) -> Iterator[None]:
        """Leave nothing half-built behind, say what is kept, and put a full disk into words."""
        try:
            yield
        except BaseException as problem:
            kept = self.store.abandon(stage)
            self.announce.stage_broken(stage, _what_is_kept(isinstance(problem, KeyboardInterrupt), kept))
            if isinstance(problem, OSError) and problem.errno in _FULL:
                raise _no_space(self.store, stage) from problem
            raise


def _what_is_kept(interrupted: bool, kept: bool) -> str:
    own = "what it has done so far and all finished stages are kept" if kept else "all finished stages are kept"
    return f"{'interrupted' if interrupted else 'failed'}; {own}, and the same command goes on from there."


def _no_space(store: Store, stage: Stage) -> StoreError:
    return StoreError(
        f"no space left on the disk of {store.root} while building {stage.key}. Free some (`python -m "
        "pipeline cache list` shows what is stored, `cache clean` removes it) and run the same command again."
    )
