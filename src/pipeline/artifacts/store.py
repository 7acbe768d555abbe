"""The store of artifacts: each is complete or absent; `explain` says why one is absent.

root/NAME/DIGEST/       an artifact: its files and stage.json, the record written last
root/.work/KEY/out-...  one being built, by one attempt; renamed into place when it is whole
root/.work/KEY/state    what a build can go on from after a crash; removed after success
root/.locks/            build locks (build_lock.py)
root/.damaged/          artifacts that lost or changed a file, moved aside
root/.trash/            what is being deleted
"""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import count
from pathlib import Path
from uuid import uuid4

from pipeline.artifacts import estimates, fingerprint
from pipeline.artifacts import manifest as record
from pipeline.artifacts.changes import describe_changes, nearest
from pipeline.artifacts.estimates import BuildEstimate
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import Stage
from pipeline.errors import UserError

_MAX_COMPARED = 30
"""Artifacts among which the nearest is searched."""


class StoreError(UserError):
    """The store cannot do what is needed; the message tells people what, where and what to do."""


@dataclass(frozen=True)
class Store:
    """The artifacts below one folder, which need not exist until something is built."""

    root: Path

    def path(self, stage: Stage) -> Path:
        """The folder of the artifact, which may not exist."""
        return self.folder(stage.name, stage.digest)

    def folder(self, name: str, digest: str) -> Path:
        """As `path`, of the stage with this name and digest."""
        return self.root / name / digest[:16]

    def has(self, stage: Stage) -> bool:
        """True if the artifact is there and complete, by the names and sizes of its files."""
        return self.path(stage).is_dir() and self.find_damage(stage) is None

    def find_damage(self, stage: Stage, check_contents: bool = False) -> str | None:
        """The damage of an existing artifact, or None; `check_contents` reads the contents too."""
        if not self.path(stage).is_dir():
            return None
        return record.find_damage(self.path(stage), self.manifest(stage), check_contents)

    def manifest(self, stage: Stage) -> Manifest | None:
        """The record of the artifact, or None if it is absent or unreadable."""
        return record.read_manifest(self.path(stage))

    def manifests(self) -> Iterator[tuple[Path, Manifest | None]]:
        """Every artifact folder with its record, None where that is unreadable."""
        for folder in sorted(self.root.glob("[!.]*/[!.]*")):
            if folder.is_dir():
                yield folder, record.read_manifest(folder)

    def explain(self, stage: Stage) -> str:
        """Why the stage would run or not: cached, damaged, new, or changed and in which keys."""
        found = self.manifest(stage)
        problem = self.find_damage(stage)
        if found and not problem:
            return f"cached ({found.built_text})"
        reason = f"damaged: {problem}" if problem else self._compare_with_nearest(stage)
        return f"{reason}; goes on from its unfinished state" if self.has_saved_state(stage) else reason

    def _compare_with_nearest(self, stage: Stage) -> str:
        found = nearest(stage, self._latest(stage.name))
        return (
            f"changed: {describe_changes(found, stage)} (against the nearest, {found.built_text})" if found else "new"
        )

    def _latest(self, name: str) -> list[Manifest]:
        """The records of the latest artifacts of this name, newest first."""
        folder = self.root / name
        newest = _newest_first(folder, _modified_ns(folder))[:_MAX_COMPARED]
        return list(filter(None, map(record.read_manifest, newest)))

    def estimate(self, stage: Stage, pair_parameters: float = 0.0) -> BuildEstimate:
        """How long building the stage will take here, and how much memory; inputs not included."""
        latest, speed = self._latest(stage.name), partial(estimates.expected_flops_per_s, self.root)
        return estimates.estimate(stage, latest, speed, pair_parameters, cache(self._maker))

    def _maker(self, name: str, digest: str) -> str | None:
        found = record.read_manifest(self.folder(name, digest))
        return found.target if found else None

    def content_digest(self, path: Path) -> str:
        """The sha256 of a user's file or folder, remembered here (`fingerprint.content_digest`)."""
        return fingerprint.content_digest(path, self.root / ".content.json", _print_note)

    @property
    def locks(self) -> Path:
        """The folder of the build locks."""
        return self.root / ".locks"

    def ensure_writable(self) -> None:
        """Make sure that artifacts can be written here, before any work. Raises StoreError if they cannot."""
        try:
            for folder in (".work", ".locks"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            probe = self.root / ".work" / f".probe-{uuid4().hex}"
            probe.write_bytes(b"1")
            probe.unlink()
        except OSError as error:
            raise StoreError(
                f"cannot write artifacts below {self.root}: {error.strerror or error}. Nothing was run. Give this user "
                "write permission there, free some space if the disk is full, or choose another folder."
            ) from error

    def has_saved_state(self, stage: Stage) -> bool:
        """True if an earlier attempt left state from which a build can continue."""
        state = self.root / ".work" / stage.key / "state"
        return state.is_dir() and any(state.iterdir())

    def workspace(self, stage: Stage, attempt: str = "", clear_state: bool = False) -> tuple[Path, Path]:
        """An empty folder of this attempt alone, and the kept `state` (emptied if `clear_state`), for building `stage`.

        What earlier attempts left is removed.
        """
        work = self.root / ".work" / stage.key
        out, state = work / f"out-{attempt}", work / "state"
        for folder in (*work.glob("out-*"), *((state,) if clear_state else ())):
            shutil.rmtree(folder, ignore_errors=True)
        out.mkdir(parents=True)
        state.mkdir(exist_ok=True)
        return out, state

    def commit(self, stage: Stage, out: Path, seconds: float, peak_memory_nbytes: int | None = None) -> Path:
        """Record what is in `out` and rename it into place, over an older attempt if there is one."""
        record.write_manifest(stage, out, seconds, peak_memory_nbytes)
        _fsync_files(out)
        final = self.path(stage)
        final.parent.mkdir(parents=True, exist_ok=True)
        older = self.move_to_trash(final) if final.exists() else None
        os.rename(out, final)
        for leftover in filter(None, (older, out.parent)):
            shutil.rmtree(leftover, ignore_errors=True)
        return final

    def discard_attempt(self, stage: Stage) -> bool:
        """Removes the output of a failed build; True if there is saved state, which stays."""
        work = self.root / ".work" / stage.key
        kept = self.has_saved_state(stage)
        for folder in work.glob("out-*") if kept else (work,):
            shutil.rmtree(folder, ignore_errors=True)
        return kept

    def move_to_damaged(self, stage: Stage) -> Path:
        """Move a damaged artifact to .damaged, where it can be looked at, and say where it is now."""
        aside = self.root / ".damaged"
        aside.mkdir(exist_ok=True)
        places = (aside / f"{stage.key}-{number}" for number in count(1))
        return self.path(stage).rename(next(place for place in places if not place.exists()))

    def move_to_trash(self, folder: Path) -> Path:
        """Take `folder` out of the store with one rename, for the caller to delete where it is then."""
        trash = self.root / ".trash" / f"{folder.parent.name}-{folder.name}-{uuid4().hex}"
        trash.parent.mkdir(exist_ok=True)
        return folder.rename(trash)


def _print_note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


@lru_cache(maxsize=16)
def _newest_first(folder: Path, modified_ns: int) -> tuple[Path, ...]:  # noqa: ARG001
    """A name's artifacts that have a record; listed again only if one has come or gone."""
    records = folder.glob(f"[!.]*/{record.MANIFEST_FILE}")
    return tuple(path.parent for path in sorted(records, key=_modified_ns, reverse=True))


def _modified_ns(path: Path) -> int:
    """0 for what another process has moved meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _fsync_files(folder: Path) -> None:
    """Push the files to the disk before the rename, or a power cut could leave a whole name on empty files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
