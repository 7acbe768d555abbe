"""A trace goes into a file and comes out the same; what is damaged, foreign or too large leaves nothing."""

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving.outcomes import trace_file
from serving.outcomes.replayed import load
from serving.outcomes.trace import TOKENIZER_DIR, load_trace, save_trace, table_arrays
from serving.outcomes.trace_file import ABOUT_FILE, ORIGIN_FILE, TraceOrigin, export_trace, import_trace, read_about
from tests.serving.outcomes.made_up_trace import trace
from tests.support.tiny_tokenizers import byte_level

ORIGIN = TraceOrigin(license="CC0-1.0", origin="made up by a test")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the stage record_outcomes leaves it."""
    folder = tmp_path_factory.mktemp("recorded")
    save_trace(folder, trace(exits=True))
    byte_level().save_pretrained(folder / TOKENIZER_DIR)
    return folder


@pytest.fixture(scope="module")
def exported(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "made-up.trace"
    export_trace(recorded, file, ORIGIN)
    return file


def changed(file: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a trace file with other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out


def about_with(**values: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[ABOUT_FILE] = json.dumps(json.loads(members[ABOUT_FILE]) | values).encode()

    return change


def without_policy(members: dict[str, bytes]) -> None:
    about = json.loads(members[ABOUT_FILE])
    del about["policy"]
    members[ABOUT_FILE] = json.dumps(about).encode()


def test_what_is_imported_is_what_was_exported(recorded: Path, exported: Path, tmp_path: Path) -> None:
    import_trace(exported, tmp_path / "imported")
    before, after = load_trace(recorded), load_trace(tmp_path / "imported")
    assert after.sessions == before.sessions
    assert (after.exit_rule, after.stop_tokens, after.made_from) == (
        before.exit_rule, before.stop_tokens, before.made_from,
    )  # fmt: skip
    for name in ("targets", "continuation_lens", "drafts", "top_candidates", "exit_layers", "attention", "proposals"):
        one, other = (getattr(found.tables, name) for found in (before, after))
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name
    assert all(np.array_equal(before.tables.scores[name], after.tables.scores[name]) for name in before.tables.scores)
    assert load(tmp_path / "imported").trace.sessions == before.sessions  # with its tokenizer
    assert json.loads((tmp_path / "imported" / ORIGIN_FILE).read_text())["license"] == "CC0-1.0"


def test_a_file_says_what_it_is(exported: Path) -> None:
    about = read_about(exported)
    assert (about["kind"], about["version"], about["license"], about["sessions"]) == ("tandem-trace", 2, "CC0-1.0", 60)


def test_a_licence_and_an_origin_are_wanted() -> None:
    with pytest.raises(ValueError, match="license is empty; a trace that travels says its licence and origin"):
        TraceOrigin(license=" ", origin="here")


def undigested(members: dict[str, bytes]) -> None:
    about_with(members=dict.fromkeys(members.keys() - {ABOUT_FILE}, 1))(members)


SHAPES = {name: list(table.shape[1:]) for name, table in table_arrays(trace(exits=True).tables).items()}
REFUSED: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "another version": (about_with(version=1), "is of version 1, and this code reads 2"),
    "another kind": (about_with(kind="holiday photos"), "its kind is 'holiday photos'"),
    "no number of sessions": (about_with(sessions="many"), "sessions is 'many'"),
    "no list of members": (about_with(members=3), "members is 3"),
    "a member without a digest": (undigested, "is not what about.json says"),
    "other columns": (about_with(shapes={"targets": []}), "it has the columns .*ask for it again"),
    "another shape": (about_with(shapes=SHAPES | {"drafts": [5]}), "its column drafts is fixed_size_list"),
    "no licence": (about_with(license=""), "license is empty"),
    "a changed member": (
        lambda members: members.update({"trace.json": members["trace.json"].replace(b"r00000", b"r00009")}),
        r"trace.json is not what about.json says; copy the file again",
    ),
    "a missing member": (lambda members: members.pop("rows.parquet"), r"a trace has rows.parquet, tokens.parquet"),
    "a member outside": (lambda members: members.update({"../evil.json": b"{}"}), r"holds \.\./evil.json, rows"),
    "a nested member": (lambda members: members.update({"tokenizer/../evil.json": b"{}"}), "and text files in tokeni"),
    "code": (lambda members: members.update({"tokenizer/tokenizer.py": b"1"}), "and text files in tokenizer/"),
    "no about": (lambda members: members.pop(ABOUT_FILE), "is no trace file: about.json cannot be used"),
    "no policy": (without_policy, r"is no trace file: about.json cannot be used \(KeyError\('policy'\)\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_not_whole_is_refused_and_leaves_nothing(exported: Path, tmp_path: Path, case: str) -> None:
    change, message = REFUSED[case]
    file = changed(exported, tmp_path / "changed.trace", change)
    with pytest.raises(ValueError, match=message):
        import_trace(file, tmp_path / "imported")
    assert [path.name for path in tmp_path.iterdir()] == ["changed.trace"]


def test_a_file_with_a_bit_that_turned_is_refused_or_whole(exported: Path, tmp_path: Path) -> None:
    data, chance = exported.read_bytes(), random.Random(0)
    file, refused = tmp_path / "turned.trace", 0
    for place in chance.sample(range(len(data)), 300):
        file.write_bytes(data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :])
        try:
            import_trace(file, tmp_path / "imported")
        except ValueError:
            refused += 1
        else:
            shutil.rmtree(tmp_path / "imported")
    assert refused > 200
    assert [path.name for path in tmp_path.iterdir()] == ["turned.trace"]


def test_an_encrypted_member_and_endless_nesting_are_refused(exported: Path, tmp_path: Path) -> None:
    data = exported.read_bytes()
    place = data.index(b"PK\x01\x02") + 8  # the flags of the first member in the directory; bit 0: encrypted
    (tmp_path / "secret.trace").write_bytes(data[:place] + bytes([data[place] | 1]) + data[place + 1 :])
    with pytest.raises(ValueError, match="is encrypted"):
        read_about(tmp_path / "secret.trace")
    nested = changed(exported, tmp_path / "nested.trace", lambda members: members.update({ABOUT_FILE: b"[" * 100_000}))
    with pytest.raises(ValueError, match=r"is no trace file: about\.json cannot be used"):
        read_about(nested)


def test_a_member_that_was_made_to_burst_is_refused_unread(exported: Path, tmp_path: Path) -> None:
    file = tmp_path / "bomb.trace"
    with zipfile.ZipFile(exported) as whole, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name in whole.namelist():
            out.writestr(name, b" " * 10_000_000 if name == "trace.json" else whole.read(name))
    with pytest.raises(ValueError, match=r"unpacks to 10000000 bytes from \d+; a trace has at most 200 times"):
        read_about(file)


def test_tables_that_contradict_the_header_are_refused(exported: Path, tmp_path: Path) -> None:
    def shorten(members: dict[str, bytes]) -> None:
        header = json.loads(members["trace.json"])
        header["sessions"].pop()
        data = json.dumps(header).encode()
        about = json.loads(members[ABOUT_FILE])
        about["members"]["trace.json"] = {"nbytes": len(data), "sha256": trace_file.sha256(data).hexdigest()}
        members.update({"trace.json": data, ABOUT_FILE: json.dumps(about).encode()})

    with pytest.raises(ValueError, match=r"is no readable trace .*ask for it again"):
        import_trace(changed(exported, tmp_path / "short.trace", shorten), tmp_path / "imported")
    assert [path.name for path in tmp_path.iterdir()] == ["short.trace"]


def test_a_file_beyond_the_bound_is_refused_unread(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MAX_NBYTES", 1000)
    with pytest.raises(ValueError, match=r"unpacks to \d+ bytes in \d+ files; the most is 1000 in 64"):
        read_about(exported)


def test_tables_beyond_the_bound_are_refused_unread(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "_check_members", lambda *_: None)  # small in the archive, large in memory
    monkeypatch.setattr(trace_file, "MAX_NBYTES", 1000)
    with pytest.raises(ValueError, match=r"its tables take \d+ bytes; the most is 1000"):
        import_trace(exported, tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_a_column_that_holds_no_numbers_is_refused() -> None:
    column = BytesIO()
    pq.write_table(pa.table({"targets": ["one", "two"]}), column)
    with pytest.raises(ValueError, match="its column targets holds string, not numbers"):
        trace_file._arrays(column.getvalue(), {"targets": []})


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.trace").write_text("text")
    with pytest.raises(ValueError, match=r"x.trace is no trace file .*; `trace export` writes one"):
        read_about(tmp_path / "x.trace")
