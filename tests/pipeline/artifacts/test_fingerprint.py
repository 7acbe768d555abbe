"""Canonical or refused; contents by digest, read once."""

import enum
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts import fingerprint
from pipeline.artifacts.fingerprint import canonical_json, content_digest, write_atomic

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None, max_examples=50)
@given(PLAIN)
def test_plain_data_survive_a_round_trip_through_canonical_json(value: Any) -> None:
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


def test_canonical_json_sorts_keys_and_escapes_unicode() -> None:
    assert canonical_json({"b": [1, 1.0, True, None], "a": "é"}) == '{"a":"\\u00e9","b":[1,1.0,true,null]}'


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, r"^value is nan, which has no canonical form; use null"),
        ({"a": [0.0, math.inf]}, r"^value\.a\[1\] is inf"),
        ({"a": {"b": (1, 2)}}, r"^value\.a\.b is builtins\.tuple .*convert it to plain data"),
        ({"a": {1, 2}}, r"^value\.a is builtins\.set"),
        ({"a": Colour.RED}, r"^value\.a is .*Colour"),
        ({"a": b"x"}, r"^value\.a is builtins\.bytes"),
        ({"a": {1: 2}}, r"^value\.a: the key 1 is int, not str"),
    ],
)
def test_values_without_canonical_form_are_refused_with_their_place(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        canonical_json(value)


def test_the_digest_of_a_file_depends_on_its_content_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    assert content_digest(tmp_path / "a", tmp_path / "memo") == hashlib.sha256(b"weights").hexdigest()


def folder(at: Path, **files: str) -> Path:
    for name, text in files.items():
        path = at / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return at


def test_the_digest_of_a_folder_depends_on_relative_names_and_contents(tmp_path: Path) -> None:
    def digest(name: str, **files: str) -> str:
        return content_digest(folder(tmp_path / name, **files), tmp_path / "memo")

    first = digest("a", config="1", deep__weights="2")
    assert digest("b", config="1", deep__weights="2") == first
    assert digest("c", config="1", deep__weights="3") != first
    assert digest("d", config="1", weights="2") != first


def test_hidden_files_do_not_change_a_folders_digest(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", weights="2")
    before = content_digest(model, tmp_path / "memo")
    folder(model / ".git", HEAD="x")
    (model / ".DS_Store").write_text("x")
    assert content_digest(model, tmp_path / "memo") == before


def test_a_folder_with_much_to_read_is_announced_until_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "MANY_FILES", 1)
    said: list[str] = []
    home = folder(tmp_path / "home", first="1", second="22")
    digests = {content_digest(home, tmp_path / "memo", said.append) for _ in range(2)}
    assert len(digests) == 1
    assert said == [f"reading 2 files (0.0 GB) of {home}, by which it is identified"]


def test_a_symbolic_link_has_the_digest_of_its_target(tmp_path: Path) -> None:
    plain, blobs = folder(tmp_path / "plain", weights="2"), folder(tmp_path / "blobs", abc="2")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "weights").symlink_to(blobs / "abc")
    assert content_digest(tmp_path / "linked", tmp_path / "memo") == content_digest(plain, tmp_path / "memo")


def test_a_folder_behind_a_link_is_part_of_the_digest(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain", deep__weights="2")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "deep").symlink_to(plain / "deep")
    assert content_digest(tmp_path / "linked", tmp_path / "memo") == content_digest(plain, tmp_path / "memo")


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, memo = folder(tmp_path / "model", weights="2"), tmp_path / "memo.json"
    first = content_digest(model, memo)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert content_digest(model, memo) == first


def test_same_size_and_time_of_writing_do_not_hide_a_change(tmp_path: Path) -> None:
    model, memo = folder(tmp_path / "model", weights="2"), tmp_path / "memo.json"
    stat = (model / "weights").stat()
    first = content_digest(model, memo)
    (model / "new").write_text("3")
    os.utime(model / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (model / "new").replace(model / "weights")
    assert content_digest(model, memo) != first


def test_memo_forgets_older_versions_of_a_file(tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    for text in ("one", "three"):
        content_digest(folder(tmp_path / "model", weights=text), memo)
    assert len(json.loads(memo.read_text())) == 1


def test_memo_keeps_what_other_files_had_and_what_another_process_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo, digest = tmp_path / "memo.json", hashlib.file_digest
    folder(tmp_path, a="1", b="2", c="3")
    content_digest(tmp_path / "a", memo)

    def other_process(*arguments: Any) -> Any:
        monkeypatch.setattr(hashlib, "file_digest", digest)
        content_digest(tmp_path / "b", memo)
        return digest(*arguments)

    monkeypatch.setattr(hashlib, "file_digest", other_process)
    content_digest(tmp_path / "c", memo)
    assert sorted(Path(stamp.split("|")[0]).name for stamp in json.loads(memo.read_text())) == ["a", "b", "c"]


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, memo, digest = tmp_path / "weights", tmp_path / "memo.json", hashlib.file_digest
    file.write_text("2")

    def written_meanwhile(*arguments: Any) -> Any:
        found = digest(*arguments)
        file.write_text("longer")
        return found

    monkeypatch.setattr(hashlib, "file_digest", written_meanwhile)
    content_digest(file, memo)
    assert not memo.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}'])
def test_corrupt_memo_only_costs_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "memo").write_text(text)
    (tmp_path / "a").write_bytes(b"weights")
    assert content_digest(tmp_path / "a", tmp_path / "memo") == hashlib.sha256(b"weights").hexdigest()


def test_unwritable_memo_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    assert content_digest(tmp_path / "a", tmp_path / "a" / "memo") == hashlib.sha256(b"weights").hexdigest()


def test_a_missing_path_and_an_empty_folder_have_no_digest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        content_digest(tmp_path / "absent", tmp_path / "memo")
    with pytest.raises(ValueError, match="holds no file"):
        content_digest(tmp_path, tmp_path / "memo")


def test_two_processes_of_one_number_write_a_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes of two containers may; here the second one writes before the first one renames its file."""
    file, replace = tmp_path / "sweep.json", os.replace

    def replace_late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        write_atomic(file, "second")
        assert file.read_text() == "second"
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_late)
    write_atomic(file, "the one's")
    assert file.read_text() == "the one's"
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_nothing_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(tmp_path / "sweep.json", "x")
    assert list(tmp_path.iterdir()) == []


def test_files_are_remembered_whatever_their_folder_is_called(tmp_path: Path) -> None:
    (tmp_path / "a|b").mkdir()
    folder(tmp_path / "a|b", one="1", two="2")
    content_digest(tmp_path / "a|b", tmp_path / "memo.json")
    assert len(json.loads((tmp_path / "memo.json").read_text())) == 2
