"""stage.json: what an artifact is, what it was made from, and what its files were when they were whole."""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.artifacts import environment
from pipeline.artifacts.stage import Stage

NAME = "stage.json"
HASHED_BELOW_NBYTES = 64 * 1024**2


@dataclass(frozen=True)
class File:
    """Size of one file, and the sha256 of its content unless it is large."""

    nbytes: int
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """The record of one artifact; `args` names inputs, `inputs` gives their digests, `built` is UTC in ISO 8601."""

    name: str
    digest: str
    target: str
    version: int
    args: dict[str, Any]
    inputs: dict[str, str]
    seconds: float
    built: str
    revision: str | None
    versions: dict[str, str]
    files: dict[str, File]

    @property
    def key(self) -> str:
        """As `Stage.key`."""
        return f"{self.name}-{self.digest[:12]}"

    @property
    def nbytes(self) -> int:
        """Bytes of all files, without this record."""
        return sum(file.nbytes for file in self.files.values())

    @property
    def when(self) -> str:
        """When and in how long it was built, for people."""
        return f"built {self.built[:16].replace('T', ' ')}, {self.seconds:.{0 if self.seconds >= 10 else 1}f} s"


def write(stage: Stage, out: Path, seconds: float) -> None:
    """Record `stage`, finished in `out`. Raises RuntimeError if the stage function broke its contract."""
    files = {path.relative_to(out).as_posix(): _file(path) for path in sorted(out.rglob("*")) if path.is_file()}
    if not files or NAME in files:
        problem = f"wrote {NAME}, which the store writes" if files else "returned without writing anything"
        raise RuntimeError(f"{stage.key}: {stage.target} {problem}; a stage function must fill its folder `out`.")
    inputs = {name: needed.digest for name, needed in stage.inputs.items()}
    record = Manifest(
        stage.name, stage.digest, stage.target, stage.version, stage.identity, inputs, round(seconds, 3),
        datetime.now(UTC).isoformat(timespec="seconds"), environment.revision(), environment.versions(), files,
    )  # fmt: skip
    (out / NAME).write_text(json.dumps(asdict(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest | None:
    """The record in `folder`, or None if it is missing or cannot be read."""
    try:
        fields: dict[str, Any] = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Manifest(**fields | {"files": {name: File(**file) for name, file in fields["files"].items()}})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def damage(folder: Path, manifest: Manifest | None, thorough: bool = False) -> str | None:
    """What is wrong with an artifact, or None: names and sizes, and with `thorough` the contents as well."""
    if manifest is None:
        return f"{NAME} is missing or unreadable"
    for name, file in manifest.files.items():
        if problem := _problem(folder / name, file, thorough):
            return f"{name} {problem}"
    return None


def _problem(path: Path, file: File, thorough: bool) -> str | None:
    if not path.is_file():
        return "is missing"
    nbytes = path.stat().st_size
    if nbytes != file.nbytes:
        return f"has {nbytes} bytes instead of {file.nbytes}"
    if thorough and file.sha256 and _sha256(path) != file.sha256:
        return "has another content than was written"
    return None


def _file(path: Path) -> File:
    nbytes = path.stat().st_size
    return File(nbytes, _sha256(path) if nbytes < HASHED_BELOW_NBYTES else None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
