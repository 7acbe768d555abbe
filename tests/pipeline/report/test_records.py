import json

import pyarrow.parquet as pq
import pytest

from pipeline.report.records import PackingFactor, Records, RecordsError
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


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path, REQUESTS) / "requests.parquet"
    pq.write_table(pq.read_table(path).drop(["ttft_s", "text"]), path)
    with pytest.raises(RecordsError, match=r"requests.parquet .* lacks the columns text, ttft_s"):
        Records.read(tmp_path)


def test_a_truncated_file_is_named_with_what_to_do(tmp_path):
    path = write(tmp_path, REQUESTS) / "chunks.parquet"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RecordsError, match=r"chunks.parquet cannot be read .* remove the folder .* same command again"):
        Records.read(tmp_path)


def test_missing_settings_are_named(tmp_path):
    (write(tmp_path, REQUESTS) / "meta.json").write_text(json.dumps({"policy": "sled"}))
    with pytest.raises(RecordsError, match=r"meta.json .* lacks lossless, quality_metric"):
        Records.read(tmp_path)


def test_a_run_without_requests_is_refused(tmp_path):
    with pytest.raises(RecordsError, match="holds no request"):
        Records.read(write(tmp_path, []))
