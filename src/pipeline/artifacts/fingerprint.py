"""Canonical JSON of values and the sha256 of files, equal in every process; files are replaced atomically."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4


def write_atomic(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place: a reader or a crash meets the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # processes of two hosts or containers may have one number
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def canonical_json(value: Any, where: str = "value") -> str:
    """The one JSON text of plain data: None, bool, int, finite float, str, list and dict with str keys.

    There is no fallback encoder, since a guessed text would silently split one identity into two. `1` and `1.0` are
    different values. Raises TypeError that names the place inside `value`, the type found there and the remedies.
    """
    _check_plain_data(value, where)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_plain_data(value: Any, where: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{where}: the key {key!r} is {type(key).__name__}, not str; quote it in the YAML.")
            _check_plain_data(item, f"{where}.{key}")
    elif kind is list:
        for index, item in enumerate(value):
            _check_plain_data(item, f"{where}[{index}]")
    elif kind is float and not math.isfinite(value):
        raise TypeError(f"{where} is {value}, which has no canonical form; use null or a finite number.")
    elif value is not None and kind not in (bool, int, float, str):
        raise TypeError(
            f"{where} is {kind.__module__}.{kind.__qualname__} ({value!r:.60}), which cannot be part of an identity. "
            "Allowed are None, bool, int, finite float, str, list and dict. Write it as a `_target_` node, convert it "
            "to plain data, or move it to `resources` if it does not change the result."
        )


MANY_FILES, MANY_NBYTES = 10_000, 1 << 30
"""A folder with more to read is announced: it may be the wrong one, such as a user's whole home."""


def content_digest(path: Path, memo_path: Path, announce: Callable[[str], None] = lambda _: None) -> str:
    """The sha256 (hex) of a file, or of a directory's files: relative names and contents, without hidden ones.

    `memo_path` is a JSON file that remembers digests by path, size and times of change, so that a checkpoint of many
    gigabytes is read once; a memo that is missing or corrupt only costs time. Raises FileNotFoundError if there is
    nothing at `path`, ValueError if the directory holds no file. `announce` is told of a folder with much to read.
    """
    known = _read_memo(memo_path)
    before = dict(known)
    try:
        return _directory_digest(path, known, announce) if path.is_dir() else _file_digest(path, known)
    finally:
        if known != before:
            _write_memo(memo_path, known)


def _directory_digest(path: Path, known: dict[str, str], announce: Callable[[str], None]) -> str:
    found = list(_visible_files(path))
    if not found:
        raise ValueError(f"{path} holds no file, so nothing identifies it; name the folder with the files.")
    unread = [file for file in found if _file_stamp(file) not in known]
    nbytes = sum(file.stat().st_size for file in unread)
    if len(unread) > MANY_FILES or nbytes > MANY_NBYTES:
        announce(f"reading {len(unread):,} files ({nbytes / 1e9:.1f} GB) of {path}, by which it is identified")
    files = {file.relative_to(path).as_posix(): _file_digest(file, known) for file in found}
    return hashlib.sha256(canonical_json(files).encode()).hexdigest()


def _visible_files(path: Path) -> Iterator[Path]:
    """Files below `path`, links followed: a model from the Hub's cache is a folder of links."""
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _file_digest(path: Path, known: dict[str, str]) -> str:
    stamp = _file_stamp(path)
    if stamp in known:
        return known[stamp]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _file_stamp(path) == stamp:  # a file that changes meanwhile is not remembered
        known[stamp] = digest
    return digest


def _file_stamp(path: Path) -> str:
    """With the inode's change time: copying with times kept (`cp -p`) can swap contents under one size and mtime."""
    stat = path.stat()
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"


def _read_memo(memo_path: Path) -> dict[str, str]:
    try:
        known = json.loads(memo_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, str)} if isinstance(known, dict) else {}


def _write_memo(memo_path: Path, known: dict[str, str]) -> None:
    """Keeps what other processes added meanwhile, and drops older stamps of the same files; may fail unnoticed."""
    paths = {stamp.rsplit("|", 3)[0]: stamp for stamp in known}
    merged = {s: d for s, d in (_read_memo(memo_path) | known).items() if paths.get(s.rsplit("|", 3)[0], s) == s}
    try:
        write_atomic(memo_path, json.dumps(merged, indent=0, sort_keys=True))
    except OSError:
        return
