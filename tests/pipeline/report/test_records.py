import json
from dataclasses import dataclass
from math import nan

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.report import records
from pipeline.report.records import PackingFactor, Records, RecordsError, read_batches
from tests.pipeline.report.serve_artifact import request, write

REQUESTS = [request("a", ["device", "cloud"], [0.5, 0.75])]


def test_written_records_are_read_back(tmp_path):
    chunk = {"request": "a", "position": 5, "num_tokens": 1, "accepted": None, "confidence": 0.5, "importance": None}
    piece = {"request": "a", "lane": "draft", "start_s": 0.0, "end_s": 0.5, "amount": 1}
    records = Records.read(write(tmp_path, REQUESTS, [piece], [chunk], extra=1))
    assert records.requests[0].origins == ["device", "cloud"]
    assert records.requests[0].mean_tbt_s == 0.25
    assert records.requests[0].end_to_end_s == 0.75
    assert records.timeline[0].end_s == 0.5
    assert records.chunks[0].accepted is None
    assert records.meta.packing_factor == PackingFactor(6.0, "Synera, Table 3")
    assert records.meta.raw["extra"] == 1


def test_a_part_of_the_time_lines_is_that_part_of_all(tmp_path):
    lanes = {"a": ("draft", "verify", "queue"), "b": ("queue", "draft"), "c": ("draft",)}
    pieces = [
        {"request": name, "lane": lane, "start_s": float(at), "end_s": at + 0.5, "amount": at}
        for name, own in lanes.items() for at, lane in enumerate(own)
    ]  # fmt: skip
    found = Records.read(write(tmp_path, [request(name, ["device"], [0.5]) for name in lanes], pieces))
    assert [found.timeline_of(name) for name in (*lanes, "d")] == [
        [one for one in found.timeline if one.request == name] for name in (*lanes, "d")
    ]
    assert found.requests_on("verify", "decode") == {"a"}
    assert found.requests_on("queue", "verify") == {"a", "b"}
    assert found.spans_on("queue") == [(2.0, 2.5), (0.0, 0.5)]
    assert found.has_time_lines


def test_a_run_without_time_lines_has_parts_of_none(tmp_path):
    found = Records.read(write(tmp_path, REQUESTS))
    assert (found.timeline_of("a"), found.requests_on("queue"), found.spans_on("queue")) == ([], set(), [])
    assert not found.has_time_lines


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path, REQUESTS) / "requests.parquet"
    pq.write_table(pq.read_table(path).drop(["ttft_s", "text"]), path)
    with pytest.raises(RecordsError, match=r"requests.parquet .* lacks the columns text, ttft_s"):
        Records.read(tmp_path)


def test_a_truncated_file_is_named_with_what_to_do(tmp_path):
    artifact = tmp_path / "serve" / "0123456789abcdef"
    artifact.mkdir(parents=True)
    path = write(artifact, REQUESTS) / "chunks.parquet"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RecordsError, match=r"chunks.parquet cannot be read .* same command with force=\[serve\] once"):
        Records.read(artifact)


def test_a_header_that_cannot_be_parsed_is_said_in_one_line(tmp_path):
    path = write(tmp_path, REQUESTS) / "requests.parquet"
    whole = path.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:begin] + b"\xff" * 60 + whole[begin + 60 :])
    with pytest.raises(RecordsError, match=r"^[^\n]*requests.parquet cannot be read [^\n]*[^.]\. If it was[^\n]*$"):
        Records.read(tmp_path)


def test_damaged_batches_are_named(tmp_path):
    assert read_batches(tmp_path) == ([], [])
    (tmp_path / "batches.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecordsError, match=r"batches.parquet cannot be read"):
        read_batches(tmp_path)


def test_damaged_rows_are_named_when_they_are_read(tmp_path):
    pieces = [{"request": "a", "lane": "draft", "start_s": i / 7, "end_s": i / 3, "amount": i} for i in range(2000)]
    path = write(tmp_path, REQUESTS, pieces) / "timeline.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(400) + whole[600:])
    found = Records.read(tmp_path)
    with pytest.raises(RecordsError, match=r"timeline.parquet cannot be read"):
        _ = found.timeline


@dataclass(frozen=True)
class Row:
    text: str
    number: int
    share: float
    known: bool
    maybe: float | None
    several: list[int]


ROWS = [
    Row("a", 1, 0.5, True, None, [1, 2]), Row("b", -(2**40), nan, False, 0.25, []), Row("a", 0, 1e300, True, None, [3]),
]  # fmt: skip


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1] * 5, []])
def test_columns_of_every_kind_are_read_as_python_values(tmp_path, rows):
    types = [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.float64(), pa.list_(pa.int64())]
    schema = pa.schema(list(zip(Row.__dataclass_fields__, types, strict=True)))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([vars(row) for row in rows], schema), path, row_group_size=2)
    found = records._read_parquet(path, Row)
    assert repr(found) == repr(rows)  # nan is not equal to itself
    assert [[type(value) for value in vars(row).values()] for row in found] == [
        [type(value) for value in vars(row).values()] for row in rows
    ]


def test_missing_settings_are_named(tmp_path):
    (write(tmp_path, REQUESTS) / "meta.json").write_text(json.dumps({"policy": "sled"}))
    with pytest.raises(RecordsError, match=r"meta.json .* lacks lossless, quality_metric"):
        Records.read(tmp_path)


def test_a_run_without_requests_is_refused(tmp_path):
    with pytest.raises(RecordsError, match="holds no request"):
        Records.read(write(tmp_path, []))
