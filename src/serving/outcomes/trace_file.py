"""A recorded trace as one file that travels: a zip of JSON and Parquet, with its licence and origin.

`about.json` says what the file is and the size and SHA-256 of every other member; `trace.json` is the trace's header,
`tokens.parquet` the texts, `rows.parquet` the tables, `tokenizer/` the tokenizer's text files.
"""

import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from serving.learned.artifact import UnreadableError
from serving.outcomes.trace import HEADER_FILE, TENSORS_FILE, TOKENIZER_DIR, OutcomeTrace, load_trace, table_arrays

KIND, VERSION = "tandem-trace", 2
ABOUT_FILE, TOKENS_FILE, ROWS_FILE = "about.json", "tokens.parquet", "rows.parquet"
ORIGIN_FILE = "origin.json"
"""In an imported trace's folder: its licence and origin."""
MAX_NBYTES, MAX_ABOUT_NBYTES, MAX_MEMBERS = 8 << 30, 1 << 20, 64
MAX_COMPRESSION = 200
"""Bytes of a member for each of its compressed bytes: text has 3 to 30, Parquet 1; a zip bomb has thousands."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)
"""What reading a damaged or encrypted member raises; a method that Python lacks is a NotImplementedError, which is a
RuntimeError, as is too deep JSON.
"""
_ABOUT_FIELDS: dict[str, Any] = {
    "version": int, "made_from": dict, "policy": str | None, "sessions": int, "rows": int, "shapes": dict,
    "members": dict,
}  # fmt: skip
_TEXT_SUFFIXES = (".json", ".jinja", ".txt")
_TOKENIZER_FILE = "tokenizer.json"
"""What a simulation reads its text with."""


@dataclass(frozen=True, kw_only=True)
class TraceOrigin:
    """What a reader of a trace must know. Raises ValueError for an empty field."""

    license: str
    """Of the texts in it: the prompts' and, where its licence says so, the models'."""
    origin: str
    """Where it was recorded, of what, by whom."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value.strip():
                raise ValueError(f"{name} is empty; a trace that travels says its licence and origin")


def export_trace(folder: Path, file: Path, origin: TraceOrigin) -> dict[str, Any]:
    """Writes the trace in `folder` to `file`; returns what about.json says.

    Raises ValueError for a folder without a trace or its tokenizer.
    """
    import numpy as np

    if file.exists():
        raise ValueError(f"{file} exists; remove it, or export under another name")
    if not (folder / HEADER_FILE).is_file():
        raise ValueError(f"there is no trace in {folder}, which has no {HEADER_FILE}; name the folder of an artifact "
                         "that stage=record_outcomes made")  # fmt: skip
    trace = load_trace(folder)
    tables, tokens = table_arrays(trace.tables), [token for one in trace.sessions for token in one.token_ids]
    members = {
        HEADER_FILE: (folder / HEADER_FILE).read_bytes(),
        TOKENS_FILE: _parquet({"token_ids": np.array(tokens, np.int32)}),
        ROWS_FILE: _parquet(tables),
        **{f"{TOKENIZER_DIR}/{path.name}": path.read_bytes() for path in _tokenizer_files(folder)},
    }
    about = {
        "kind": KIND,
        "version": VERSION,
        **asdict(origin),
        **_summary(trace),
        "shapes": {name: list(array.shape[1:]) for name, array in tables.items()},
        "members": {name: _described(data) for name, data in members.items()},
    }
    partial = file.with_name(f".{file.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(ABOUT_FILE, json.dumps(about, indent=1))
        for name, data in members.items():
            out.writestr(name, data)
    partial.rename(file)
    return about


def _summary(trace: OutcomeTrace) -> dict[str, Any]:
    """What about.json repeats of the trace."""
    return {
        "made_from": trace.made_from,
        "policy": trace.policy_name,
        "sessions": len(trace.sessions),
        "rows": len(trace.tables.targets),
    }


def _check_summary(about: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises ValueError for a file that says something else of its trace than the trace does."""
    for name, value in found.items():
        if about[name] != value:
            raise ValueError(f"{ABOUT_FILE} says {name}: {about[name]!r:.80}, and the trace has {value!r:.80}")


def _described(member: bytes) -> dict[str, Any]:
    return {"nbytes": len(member), "sha256": sha256(member).hexdigest()}


def read_about(file: Path) -> dict[str, Any]:
    """What a trace file says of itself. Raises ValueError for what is no trace file, or one of another version."""
    with _opened(file) as archive:
        return _about(archive, file)


def import_trace(file: Path, folder: Path) -> dict[str, Any]:
    """Checks a trace file and unpacks it into `folder`, which a simulation reads; returns what it says of itself.

    Raises ValueError for a file that is damaged, too large, inconsistent or of another version, and for a folder that
    exists; nothing is left of a file that is refused.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists; remove it, or import under another name")
    with _opened(file) as archive:
        about = _about(archive, file)
        members = {name: _member(archive, file, name, about) for name in about["members"]}
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / TOKENIZER_DIR).mkdir(parents=True)
    try:
        _unpack(members, about, partial)
        _check_summary(about, _summary(load_trace(partial)))
    except Exception as problem:
        shutil.rmtree(partial)
        reason = problem.reason if isinstance(problem, UnreadableError) else problem
        raise ValueError(f"{file} is no readable trace ({reason}); ask for it again") from problem
    partial.rename(folder)
    return about


def _unpack(members: Mapping[str, bytes], about: Mapping[str, Any], folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    tables = _arrays(members[ROWS_FILE], about["shapes"]) | _arrays(members[TOKENS_FILE], {"token_ids": []})
    save_file({name: np.ascontiguousarray(table) for name, table in tables.items()}, folder / TENSORS_FILE)
    for name, data in members.items():
        if name not in (TOKENS_FILE, ROWS_FILE):
            (folder / name).write_bytes(data)
    origin = {name: about[name] for name in ("license", "origin", "made_from")}
    (folder / ORIGIN_FILE).write_text(json.dumps(origin, indent=1), encoding="utf-8")


def _tokenizer_files(folder: Path) -> list[Path]:
    """Raises ValueError for a folder without what a simulation needs of them."""
    if not (folder / TOKENIZER_DIR / _TOKENIZER_FILE).is_file():
        raise ValueError(
            f"there is no {TOKENIZER_DIR}/{_TOKENIZER_FILE} in {folder}; record the trace again with a "
            "tokenizer that has this file"
        )
    return sorted(path for path in (folder / TOKENIZER_DIR).iterdir() if path.suffix in _TEXT_SUFFIXES)


def _parquet(tables: Mapping[str, Any]) -> bytes:
    """One column a table, except empty ones; a row's numbers are a list of fixed length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name, table in ((name, table) for name, table in tables.items() if table.size):
        flat = pa.array(table.reshape(-1))
        width = int(table.size // max(1, len(table)))
        columns[name] = flat if table.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    out = BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def _arrays(data: bytes, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a Parquet file; `shapes` of their rows. Raises ValueError for other columns."""
    import numpy as np
    import pyarrow.parquet as pq

    filled = {name: shape for name, shape in shapes.items() if 0 not in shape}
    _check_columns(pq.ParquetFile(BytesIO(data)), filled)
    found = pq.read_table(BytesIO(data), use_threads=False, pre_buffer=False)
    arrays = {name: np.zeros((found.num_rows, *shapes[name]), np.int32) for name in shapes.keys() - filled.keys()}
    for name, shape in filled.items():
        column = found[name].combine_chunks()
        values = column.flatten() if shape else column
        if column.null_count or values.null_count:
            raise ValueError(f"its column {name} has {column.null_count or values.null_count} cells without a number")
        arrays[name] = values.to_numpy(zero_copy_only=False).reshape(len(column), *map(int, shape))
    return arrays


def _check_columns(file: Any, shapes: Mapping[str, Any]) -> None:
    """Raises ValueError for other columns than numbers of these shapes, and beyond the bound. Reads no values."""
    import pyarrow as pa

    schema, num_rows = file.schema_arrow, file.metadata.num_rows
    if sorted(schema.names) != sorted(shapes):
        raise ValueError(f"it has the columns {sorted(schema.names)}, and says {sorted(shapes)}")
    nbytes = 0
    for name, shape in shapes.items():
        kind, width = schema.field(name).type, prod(map(int, shape))
        number = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
        if not (pa.types.is_integer(number) or pa.types.is_floating(number)):
            raise ValueError(f"its column {name} holds {kind}, not numbers")
        if (kind.list_size if kind is not number else 1) != width:
            raise ValueError(f"its column {name} is {kind}, and says {list(shape)}")
        nbytes += num_rows * width * number.bit_width // 8
    if nbytes > MAX_NBYTES:
        raise ValueError(f"its tables take {nbytes} bytes; the most is {MAX_NBYTES}")


def _opened(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as problem:
        raise ValueError(f"{file} is no trace file ({problem}); `trace export` writes one") from problem


def _about(archive: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    try:
        if archive.getinfo(ABOUT_FILE).file_size > MAX_ABOUT_NBYTES:
            raise ValueError("it is too large")
        about: dict[str, Any] = json.loads(archive.read(ABOUT_FILE))
        if about["kind"] != KIND:
            raise ValueError(f"its kind is {about['kind']!r}")
        for name, kind in _ABOUT_FIELDS.items():
            if not isinstance(about[name], kind):
                raise TypeError(f"{name} is {about[name]!r:.40}")
        TraceOrigin(license=str(about["license"]), origin=str(about["origin"]))
    except (KeyError, TypeError, ValueError, *_DAMAGE) as problem:
        raise ValueError(f"{file} is no trace file: {ABOUT_FILE} cannot be used ({problem!r})") from problem
    if about["version"] != VERSION:
        raise ValueError(
            f"{file} is of version {about['version']}, and this code reads {VERSION}; ask for an export of this version"
        )
    _check_members(archive, file, about)
    return about


def _check_members(archive: zipfile.ZipFile, file: Path, about: Mapping[str, Any]) -> None:
    """Raises ValueError for members that a trace does not have, for missing ones, and beyond the bounds."""
    names = set(archive.namelist()) - {ABOUT_FILE}
    wanted = {HEADER_FILE, TOKENS_FILE, ROWS_FILE}
    others = [name for name in names - wanted if not _is_tokenizer_file(name)]
    has_tokenizer = f"{TOKENIZER_DIR}/{_TOKENIZER_FILE}" in names
    if others or wanted - names or not has_tokenizer or names != set(about["members"]):
        raise ValueError(
            f"{file} holds {', '.join(sorted(names))[:200]}; a trace has {', '.join(sorted(wanted))} and text files in "
            f"{TOKENIZER_DIR}/, {_TOKENIZER_FILE} among them, all of which {ABOUT_FILE} names"
        )
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_NBYTES or len(names) > MAX_MEMBERS:
        raise ValueError(
            f"{file} unpacks to {total} bytes in {len(names)} files; the most is {MAX_NBYTES} in {MAX_MEMBERS}"
        )
    for info in archive.infolist():
        if info.file_size > MAX_ABOUT_NBYTES + MAX_COMPRESSION * info.compress_size:
            raise ValueError(
                f"{file}: {info.filename} unpacks to {info.file_size} bytes from {info.compress_size}; a trace has at "
                f"most {MAX_COMPRESSION} times as many"
            )


def _is_tokenizer_file(name: str) -> bool:
    path = PurePosixPath(name)
    return str(path.parent) == TOKENIZER_DIR and path.suffix in _TEXT_SUFFIXES and path.name == name.split("/")[-1]


def _member(archive: zipfile.ZipFile, file: Path, name: str, about: Mapping[str, Any]) -> bytes:
    try:
        data = archive.read(name)
    except _DAMAGE as problem:
        raise ValueError(f"{file}: {name} is damaged ({problem}); copy the file again") from problem
    if about["members"][name] != _described(data):
        raise ValueError(f"{file}: {name} is not what {ABOUT_FILE} says; copy the file again")
    return data
