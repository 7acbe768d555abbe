"""stage.json: the record of an artifact, its inputs and its files."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.artifacts import environment
from pipeline.artifacts.own_code import is_own, place
from pipeline.artifacts.stage import Stage
from pipeline.errors import ConfigError

MANIFEST_FILE = "stage.json"
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class FileRecord:
    """Size of one file, and the sha256 of its content; None for large files in records of older versions."""

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
    files: dict[str, FileRecord]
    peak_memory_nbytes: int | None = None
    """Resident memory of the process while it was built, at most; None where it was not measured."""
    code: dict[str, str] = field(default_factory=dict)
    """As `Stage.code`."""

    @property
    def key(self) -> str:
        """As `Stage.key`."""
        return f"{self.name}-{self.digest[:12]}"

    @property
    def nbytes(self) -> int:
        """Bytes of all files, without this record."""
        return sum(file.nbytes for file in self.files.values())

    @property
    def built_text(self) -> str:
        """When and in how long it was built, for people."""
        return f"built {self.built[:16].replace('T', ' ')}, {self.seconds:.{0 if self.seconds >= 10 else 1}f} s"


def write_manifest(stage: Stage, out: Path, seconds: float, peak_memory_nbytes: int | None = None) -> None:
    """Record `stage`, finished in `out`.

    Raises RuntimeError if the stage function broke its contract, and ConfigError if that function is a user's.
    """
    files = {path.relative_to(out).as_posix(): _file_record(path) for path in sorted(out.rglob("*")) if path.is_file()}
    if not files or MANIFEST_FILE in files:
        problem = f"wrote {MANIFEST_FILE}, which the store writes" if files else "returned without writing anything"
        wanted = "a stage function must write its files to the folder that it gets as `out`"
        if is_own(stage.target):
            raise ConfigError(f"{stage.name}: {stage.target} ({place(stage.target)}) {problem}; {wanted}.")
        raise RuntimeError(f"{stage.key}: {stage.target} {problem}; {wanted}.")
    inputs = {name: needed.digest for name, needed in stage.inputs.items()}
    record = Manifest(
        stage.name, stage.digest, stage.target, stage.version, stage.identity, inputs, round(seconds, 3),
        datetime.now(UTC).isoformat(timespec="seconds"), environment.revision(), environment.versions(), files,
        peak_memory_nbytes, dict(stage.code),
    )  # fmt: skip
    (out / MANIFEST_FILE).write_text(json.dumps(asdict(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """The record in `folder`, or None if it is missing or cannot be read."""
    path = folder / MANIFEST_FILE
    try:
        found = path.stat()
        return _parsed(path, found.st_mtime_ns, found.st_size)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


@lru_cache(maxsize=1024)
def _parsed(path: Path, mtime_ns: int, nbytes: int) -> Manifest:  # noqa: ARG001
    """Parsed again only if the file changed: the plan of a sweep compares each job with the same records."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Manifest(**fields | {"files": {name: FileRecord(**file) for name, file in fields["files"].items()}})


def find_damage(folder: Path, manifest: Manifest | None, check_contents: bool = False) -> str | None:
    """The damage of an artifact, or None, by names and sizes, and with `check_contents` by contents."""
    if manifest is None:
        return f"{MANIFEST_FILE} is missing or unreadable"
    if not manifest.digest.startswith(folder.name):
        return f"{MANIFEST_FILE} describes another artifact, {manifest.key}"
    for name, file in manifest.files.items():
        if problem := _file_damage(folder / name, file, check_contents):
            return f"{name} {problem}"
    return None


def _file_damage(path: Path, file: FileRecord, check_contents: bool) -> str | None:
    if not path.is_file():
        return "is missing"
    nbytes = path.stat().st_size
    if nbytes != file.nbytes:
        return f"has {nbytes} bytes instead of {file.nbytes}"
    if check_contents and file.sha256 and _sha256(path) != file.sha256:
        return "has another content than was written"
    return None


def _file_record(path: Path) -> FileRecord:
    return FileRecord(path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def format_nbytes(nbytes: float) -> str:
    """Three significant digits in powers of ten, whole bytes as they are: 512 B, 1.50 MB."""
    power = 0
    while abs(nbytes) >= 999.5 and power < len(_UNITS) - 1:  # which three digits would round up
        nbytes, power = nbytes / 1000, power + 1
    whole = abs(nbytes) >= 99.95 or (power == 0 and float(nbytes).is_integer())
    return f"{nbytes:,.{0 if whole else 1 if abs(nbytes) >= 9.995 else 2}f} {_UNITS[power]}"
