"""The files that a run keeps."""

from pathlib import Path

import pytest

from serving.log.reader import read_entries, read_header
from serving.log.recording import RecordingOptions
from tests.serving.log.recorded_runs import watched


@pytest.mark.parametrize(
    ("recording", "kept"),
    [
        (RecordingOptions(), set()),
        (RecordingOptions(events=True), {"events.jsonl.gz"}),
        (RecordingOptions(trace=True), {"trace.json.gz"}),
        (RecordingOptions(events=True, trace=True), {"events.jsonl.gz", "trace.json.gz"}),
    ],
)
def test_a_run_keeps_the_requested_files(tmp_path: Path, recording: RecordingOptions, kept: set[str]) -> None:
    with recording.start(tmp_path, {"policy": "synera"}) as recorded:
        watched(list(recorded.observers))
        recorded.add_facts(layers=8)
    assert {path.name for path in tmp_path.iterdir()} == kept
    if recording.events:
        assert read_header(tmp_path / "events.jsonl.gz").facts == {"policy": "synera", "layers": 8}
        assert len(list(read_entries(tmp_path / "events.jsonl.gz"))) > 100


def test_a_failed_run_leaves_its_log(tmp_path: Path) -> None:
    def breaks() -> None:
        with RecordingOptions(True, True).start(tmp_path) as recorded:
            watched(list(recorded.observers))
            raise RuntimeError("stalled")

    with pytest.raises(RuntimeError, match="stalled"):
        breaks()
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl.gz"]
    assert len(list(read_entries(tmp_path / "events.jsonl.gz"))) > 100


def test_a_trace_of_no_sessions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"record.trace_sessions=0 must be 1 or more"):
        RecordingOptions(trace=True, trace_sessions=0)
