import json
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from serving.workload import records
from serving.workload.records import DataRecord, InvalidRecordError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "data"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_json_lines_skips_and_counts_blank_lines(tmp_path):
    rows = list(records.json_lines(written(tmp_path, '\n{"a": 1}\n\n{"a": 2}')))
    assert [(row.index, row.fields) for row in rows] == [(2, {"a": 1}), (4, {"a": 2})]


def test_json_lines_splits_at_newlines_only(tmp_path):
    text = json.dumps({"a": "one\u2028two"}, ensure_ascii=False)
    assert [row.fields for row in records.json_lines(written(tmp_path, text))] == [{"a": "one\u2028two"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": \n', r"data line 2: not JSON \(Expecting value, column 7\)"),
        ('{"a": 1}\n[1]\n', "data line 2: a JSON list, needed is an object"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "data line 2: not UTF-8 .byte 0xff."),
        ("  \n", "data line 1: the file is empty"),
        ('{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", "data line 2: JSON with a number of too many digits"),
        ('{"a": 1}\n' + "[" * 200_000, "data line 2: JSON with lists or objects nested too deeply"),
    ],
)
def test_a_broken_line_is_named(tmp_path, text, message):
    with pytest.raises(InvalidRecordError, match=message):
        list(records.json_lines(written(tmp_path, text)))


@pytest.mark.parametrize(("name", "problem"), [("gone", "does not exist"), ("", "is a folder")])
def test_a_missing_file_names_the_option(tmp_path, name, problem):
    with pytest.raises(ValueError, match=f"{problem}.*workload.path"):
        list(records.json_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("12345,67\n", lambda path: records.csv_records(path, ("12345",), ",", quoted=True)),
        ('{"a": 12345}\n', records.json_lines),
    ],
)
def test_the_first_records_of_a_large_file_take_no_memory_for_the_others(tmp_path, line, read):
    path = written(tmp_path, line * 200_000)
    tracemalloc.start()
    try:
        first = list(islice(read(path), 3))
        peak_nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(first) == 3
    assert peak_nbytes < 300_000


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbfa,b\r\n1,2\r\n")
    assert [row.fields for row in records.csv_records(path, ("a", "b"), ",", quoted=True)] == [{"a": "1", "b": "2"}]
    assert records.read_text(path) == "a,b\r\n1,2\r\n"


def test_a_byte_of_another_encoding_far_into_a_file_is_named_by_its_line(tmp_path):
    path = written(tmp_path, b"a\n" + b"1\n" * 9999 + b"\xe4\n")
    with pytest.raises(InvalidRecordError, match=r"line 10001: not UTF-8 \(byte 0xe4\)"):
        list(records.csv_records(path, ("a",), ",", quoted=True))


def test_elements_of_a_json_list_know_index_and_line(tmp_path):
    rows = list(records.json_list(written(tmp_path, '[\n {"a": "]"},\n\n {"a": 2}\n]')))
    assert [(row.index, row.location.split("data ")[1]) for row in rows] == [(0, "line 2 item 0"), (1, "line 4 item 1")]


def test_members_of_a_json_object_know_index_and_line(tmp_path):
    rows = list(records.json_member(written(tmp_path, '{"version": 1,\n"data": [\n{"a": 1}]}'), "data"))
    assert rows[0].location.endswith("line 3 data 0")


@pytest.mark.parametrize(
    "text",
    [
        '{"meta": {"data": []},\n"data": [{"x": 1}]}',
        '{"meta": {"data": [{"x": 0}]},\n"data": [{"x": 1}]}',
        '{"note": "as in \\"data\\": [3]",\n"data" : [{"x": 1}]}',
        '{"data": [{"x": 0}],\n"data": [{"x": 1}]}',
    ],
)
def test_the_member_is_that_of_the_object_itself(tmp_path, text):
    (row,) = records.json_member(written(tmp_path, text), "data")
    assert row.fields == {"x": 1}
    assert row.location.endswith("line 2 data 0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "line 1: not a JSON list"),
        ("[1,\n2", "line 2: not JSON"),
        ('[{"a": 1},\n3]', "line 2 item 1: a JSON int"),
    ],
)
def test_a_broken_json_list_is_named_by_line(tmp_path, text, message):
    with pytest.raises(InvalidRecordError, match=message):
        list(records.json_list(written(tmp_path, text)))


def test_a_json_object_without_the_member_says_what_it_has(tmp_path):
    with pytest.raises(InvalidRecordError, match='no list "data"; has: rows, version'):
        list(records.json_member(written(tmp_path, '{"rows": [], "version": 1}'), "data"))


def test_a_quoted_record_of_several_lines_is_named_by_its_first(tmp_path):
    path = written(tmp_path, 'a,b\n"one\ntwo",1\nx,2\n')
    rows = list(records.csv_records(path, ("a",), ",", quoted=True))
    assert [(row.index, row.fields["a"]) for row in rows] == [(2, "one\ntwo"), (4, "x")]


def test_without_quoting_a_quote_is_a_letter(tmp_path):
    rows = list(records.csv_records(written(tmp_path, 'a\tb\n"so\t1\n'), ("a", "b"), "\t", quoted=False))
    assert rows[0].fields == {"a": '"so', "b": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", 'line 1: the header has no column "b"; has: a, c'),
        ("a,b\n1,2\n1\n", r"line 3: 1 columns, the header has 2 \(a, b\)"),
        ('a,b\n1,2\n"1,2\n', "line 3: not CSV, .*quote"),
    ],
)
def test_a_malformed_table_names_its_line(tmp_path, text, message):
    with pytest.raises(InvalidRecordError, match=message):
        list(records.csv_records(written(tmp_path, text), ("a", "b"), ",", quoted=True))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda row: row.text("gone"), 'here: no field "gone"; has: blank, number, flag, mixed, signs'),
        (lambda row: row.text("blank"), 'here: field "blank" is empty'),
        (lambda row: row.text("number"), 'field "number" is a number, needed is a text'),
        (lambda row: row.integer("blank"), 'field "blank" is a text, needed is a whole number'),
        (lambda row: row.integer("flag"), 'field "flag" is bool, needed is a whole number'),
        (lambda row: row.integer("signs"), 'field "signs" is a text, needed is a whole number'),
        (lambda row: row.text("half"), r'here: field "half" has half of a character, \\ud83d'),
        (lambda row: row.texts("halves"), r'here: field "halves" has half of a character'),
        (lambda row: row.texts("mixed"), "needed is a list of texts"),
        (lambda row: list(row.records("mixed")), r"here mixed\[0\]: a text, needed is an object"),
        (lambda row: row.nested("mixed"), 'field "mixed" is a list, needed is an object'),
    ],
)
def test_a_record_describes_an_invalid_field(read, message):
    fields = {"blank": " ", "number": 1.5, "flag": True, "mixed": ["a", 1]}
    odd = {"signs": "--1", "half": "a\ud83d", "halves": ["a", "\ud83d"]}
    row = DataRecord(fields | odd, "here", 1)
    with pytest.raises(InvalidRecordError, match=message):
        read(row)
