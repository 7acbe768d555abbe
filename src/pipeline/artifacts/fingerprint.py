"""What a value or a file is, as text that is the same in every process: canonical JSON, and the sha256 of contents.

A file is replaced as a whole or not at all.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def replace(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place: a reader or a crash meets the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def canonical(value: Any, place: str = "value") -> str:
    """The one JSON text of plain data: None, bool, int, finite float, str, list and dict with str keys.

    There is no fallback encoder, since a guessed text would silently split one identity into two. `1` and `1.0` are
    different values. Raises TypeError that names the place inside `value`, the type found there and the remedies.
    """
    _check(value, place)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check(value: Any, place: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{place}: the key {key!r} is {type(key).__name__}, not str; quote it in the YAML.")
            _check(item, f"{place}.{key}")
    elif kind is list:
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]")
    elif kind is float and not math.isfinite(value):
        raise TypeError(f"{place} is {value}, which has no canonical form; use null or a finite number.")
    elif value is not None and kind not in (bool, int, float, str):
        raise TypeError(
            f"{place} is {kind.__module__}.{kind.__qualname__} ({value!r:.60}), which cannot be part of an identity. "
            "Allowed are None, bool, int, finite float, str, list and dict. Write it as a `_target_` node, convert it "
            "to plain data, or move it to `resources` if it does not change the result."
        )


def content(path: Path, memo: Path) -> str:
    """The sha256 (hex) of a file, or of a directory's files: relative names and contents, without hidden ones.

    `memo` is a JSON file that remembers digests by path, size and times of change, so that a checkpoint of many
    gigabytes is read once; a memo that is missing or corrupt only costs time. Raises FileNotFoundError if there is
    nothing at `path`, ValueError if the directory holds no file.
    """
    known = _recall(memo)
    before = dict(known)
    try:
        return _tree(path, known) if path.is_dir() else _file(path, known)
    finally:
        if known != before:
            _remember(memo, known)


def _tree(path: Path, known: dict[str, str]) -> str:
    files = {file.relative_to(path).as_posix(): _file(file, known) for file in _visible(path)}
    if not files:
        raise ValueError(f"{path} holds no file, so nothing identifies it; name the folder with the files.")
    return hashlib.sha256(canonical(files).encode()).hexdigest()


def _visible(path: Path) -> Iterator[Path]:
    """Files below `path`, links followed: a model from the Hub's cache is a folder of links."""
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _file(path: Path, known: dict[str, str]) -> str:
    stamp = _stamp(path)
    if stamp in known:
        return known[stamp]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _stamp(path) == stamp:  # a file that somebody is writing is not remembered
        known[stamp] = digest
    return digest


def _stamp(path: Path) -> str:
    """With the inode's change time: copying with times kept (`cp -p`) can swap contents under one size and mtime."""
    stat = path.stat()
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"


def _recall(memo: Path) -> dict[str, str]:
    try:
        known = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, str)} if isinstance(known, dict) else {}


def _remember(memo: Path, known: dict[str, str]) -> None:
    """Keeps what other processes added meanwhile, and drops older stamps of the same files; may fail unnoticed."""
    paths = {stamp.split("|", 1)[0]: stamp for stamp in known}
    merged = {s: d for s, d in (_recall(memo) | known).items() if paths.get(s.split("|", 1)[0], s) == s}
    try:
        replace(memo, json.dumps(merged, indent=0, sort_keys=True))
    except OSError:
        return
