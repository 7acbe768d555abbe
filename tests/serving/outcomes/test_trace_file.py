"""A trace goes into a file and comes out the same; what is damaged, foreign or too large leaves nothing."""

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving.messages import DraftStopRule, TreeRule
from serving.outcomes import trace_file
from serving.outcomes.replayed import load
from serving.outcomes.trace import NO_NODE, TOKENIZER_DIR, OutcomeTrace, load_trace, save_trace, table_arrays
from serving.outcomes.trace_file import (
    ABOUT_FILE,
    ORIGIN_FILE,
    ROWS_FILE,
    TraceOrigin,
    export_trace,
    import_trace,
    read_about,
)
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


def without_members(members: dict[str, bytes], *names: str) -> None:
    """Without these, of which about.json says nothing either."""
    about = json.loads(members[ABOUT_FILE])
    for name in names:
        del members[name], about["members"][name]
    members[ABOUT_FILE] = json.dumps(about).encode()


def test_a_trace_without_its_tokenizer_is_not_exported(recorded: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(recorded, tmp_path / "recorded")
    (folder / TOKENIZER_DIR / "tokenizer.json").rename(folder / TOKENIZER_DIR / "tokenizer.model")
    with pytest.raises(ValueError, match=r"there is no tokenizer/tokenizer.json in .*recorded; record the trace again"):
        export_trace(folder, tmp_path / "x.trace", ORIGIN)
    shutil.rmtree(folder / TOKENIZER_DIR)
    with pytest.raises(ValueError, match=r"there is no tokenizer/tokenizer.json in"):
        export_trace(folder, tmp_path / "x.trace", ORIGIN)
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


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
    "other sessions": (about_with(sessions=999999), "about.json says sessions: 999999, and the trace has 60"),
    "other rows": (about_with(rows=3), "about.json says rows: 3, and the trace has 2460"),
    "another policy": (about_with(policy="hat"), "about.json says policy: 'hat', and the trace has None"),
    "another pair": (
        about_with(made_from={"pair": "gpt-5"}),
        "says made_from: {'pair': 'gpt-5'}, and the trace has {'pa",
    ),
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
    "no tokenizer": (
        lambda members: without_members(members, f"{TOKENIZER_DIR}/tokenizer.json"),
        "and text files in tokenizer/, tokenizer.json among them",
    ),
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


def with_member(members: dict[str, bytes], name: str, data: bytes) -> None:
    """Another member, and a line in about.json that agrees with it."""
    about = json.loads(members[ABOUT_FILE])
    about["members"][name] = trace_file._described(data)
    members.update({name: data, ABOUT_FILE: json.dumps(about).encode()})


def with_column(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, bytes]], None]:
    """Changes a column of rows.parquet: a NumPy table with a row for each position."""

    def apply(members: dict[str, bytes]) -> None:
        shapes = json.loads(members[ABOUT_FILE])["shapes"]
        tables = trace_file._arrays(members[ROWS_FILE], shapes)
        with_member(members, ROWS_FILE, trace_file._parquet({**tables, name: change(tables[name])}))

    return apply


def with_missing_cells(members: dict[str, bytes]) -> None:
    rows = pq.read_table(BytesIO(members[ROWS_FILE]))
    lens = rows["continuation_lens"].to_pylist()
    at, out = rows.schema.get_field_index("continuation_lens"), BytesIO()
    pq.write_table(rows.set_column(at, "continuation_lens", pa.array([None] * 5 + lens[5:], pa.int32())), out)
    with_member(members, ROWS_FILE, out.getvalue())


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        header = json.loads(members["trace.json"])
        change(header)
        with_member(members, "trace.json", json.dumps(header).encode())

    return apply


def first_is(value: float) -> Callable[[Any], Any]:
    """The table with another first number, in a type that holds it."""

    def change(table: Any) -> Any:
        found = table.astype(np.int64) if table.dtype.kind in "iu" else table.copy()
        found.reshape(-1)[0] = value
        return found

    return change


IMPOSSIBLE: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "missing cells": (with_missing_cells, "its column continuation_lens has 5 cells without a number"),
    "fractions": (with_column("targets", lambda table: table + 0.25), "targets holds float64; it has whole numbers"),
    "half precision": (
        with_column("targets", lambda table: table.astype(np.float16)),
        "targets holds float16; it has wh",
    ),
    "half precise scores": (
        with_column("score.margin", lambda table: table.astype(np.float16)),
        "score.margin holds float16; it has float32 or float64",
    ),
    "scores that are no numbers": (
        with_column("score.margin", first_is(np.nan)),
        "score.margin has a value that is no",
    ),
    "huge tokens": (
        with_column("targets", first_is(10**12)),
        "targets has values from 5 to 1000000000000; they are 0 to",
    ),
    "negative tokens": (with_column("drafts", first_is(-46)), "drafts has values from -46 to 99; they are 0 to 214748"),
    "negative candidates": (with_column("top_candidates", first_is(-1)), "top_candidates has values from -1 to"),
    "drafts before the first layer": (
        with_column("exit_layers", first_is(-5)),
        "exit_layers has values from -5 to 4; th",
    ),
    "no answer": (
        with_header(lambda header: header["sessions"][0].update(max_new_tokens=0)),
        "max_new_tokens of r00000 is 0; it is a whole number, 1 or more",
    ),
    "many answers": (
        with_header(lambda header: header["sessions"][0].update(max_new_tokens="many")),
        "max_new_tokens of r00000 is 'many'; it is a whole number, 1",
    ),
    "stop tokens that are text": (
        with_header(lambda header: header.update(stop_tokens=["a"])),
        "a stop token is 'a'; it is a whole number, 0 or more",
    ),
    "fewer than no layers": (
        with_header(lambda header: header.update(cloud_layers=-3)),
        "cloud_layers is -3; it is a whole number, 1 or more",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_numbers_that_no_pair_writes_are_refused(exported: Path, tmp_path: Path, case: str) -> None:
    change, message = IMPOSSIBLE[case]
    file = changed(exported, tmp_path / "changed.trace", change)
    with pytest.raises(ValueError, match=message):
        import_trace(file, tmp_path / "imported")
    assert [path.name for path in tmp_path.iterdir()] == ["changed.trace"]


def grown(*parents: int) -> OutcomeTrace:
    """The made-up trace with a tree of these parents at its first position."""
    made = trace(2)
    rule = DraftStopRule(len(parents), tree=TreeRule(2, 2))
    rows = len(made.tables.targets)
    trees = np.full((rows, 2, len(parents), 2), NO_NODE, np.int32)
    trees[0, 0] = [(7, parent) if parent != NO_NODE else (NO_NODE, NO_NODE) for parent in parents]
    levels = np.zeros((rows, 2, 1), np.int32)
    return replace(made, tables=replace(made.tables, trees=trees, tree_levels=levels), tree_rule=rule)


def test_trees_and_branches_that_cannot_have_grown_are_refused(tmp_path: Path) -> None:
    def saved_and_loaded(made: OutcomeTrace) -> OutcomeTrace:
        save_trace(tmp_path, made)
        return load_trace(tmp_path)

    assert saved_and_loaded(grown(-1, 0, -1, NO_NODE)).tables.trees[0, 0, 1].tolist() == [7, 0]
    for parents in ((0, -1), (-1, 2, 0), (-1, -3)):
        with pytest.raises(ValueError, match="a node of trees comes before its parent"):
            saved_and_loaded(grown(*parents))
    with pytest.raises(ValueError, match="a node of trees comes after an empty place"):
        saved_and_loaded(grown(-1, NO_NODE, -1))
    made = trace(2)
    for branch in ((50, 40, 3), (8, 90, 3)):
        (session, *others), tables = made.sessions, made.tables
        session = replace(session, token_ids=session.token_ids[:-1], lookahead_branches=(branch,))
        with pytest.raises(ValueError, match=r"r00000 has a lookahead branch at \("):
            saved_and_loaded(replace(made, sessions=(session, *others), tables=tables))


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


def test_a_refused_trace_is_told_without_a_folder_and_stage_of_another_machine(exported: Path, tmp_path: Path) -> None:
    def cut(members: dict[str, bytes]) -> None:
        data = members["trace.json"] = members["trace.json"][:-20]
        about = json.loads(members[ABOUT_FILE])
        about["members"]["trace.json"] = trace_file._described(data)
        members[ABOUT_FILE] = json.dumps(about).encode()

    with pytest.raises(ValueError, match=r"is no readable trace \(JSONDecodeError.*\); ask for it again") as refused:
        import_trace(changed(exported, tmp_path / "cut.trace", cut), tmp_path / "imported")
    assert "partial" not in str(refused.value)
    assert "stage=" not in str(refused.value)
