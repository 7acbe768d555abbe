"""What a run keeps, by two switches."""

from pathlib import Path

import pytest
from log.recorded import watched

from serving.log.reader import header, read
from serving.log.recording import Recording


@pytest.mark.parametrize(
    ("recording", "kept"),
    [
        (Recording(), set()),
        (Recording(events=True), {"events.jsonl.gz"}),
        (Recording(trace=True), {"trace.json.gz"}),
        (Recording(events=True, trace=True), {"events.jsonl.gz", "trace.json.gz"}),
    ],
)
def test_a_run_keeps_what_was_asked(tmp_path: Path, recording: Recording, kept: set[str]) -> None:
    with recording.open(tmp_path, {"policy": "synera"}) as recorded:
        watched(list(recorded.observers))
        recorded.note(layers=8)
    assert {path.name for path in tmp_path.iterdir()} == kept
    if recording.events:
        assert header(tmp_path / "events.jsonl.gz").facts == {"policy": "synera", "layers": 8}
        assert len(list(read(tmp_path / "events.jsonl.gz"))) > 100


def test_a_run_that_breaks_leaves_its_log(tmp_path: Path) -> None:
    def breaks() -> None:
        with Recording(True, True).open(tmp_path) as recorded:
            watched(list(recorded.observers))
            raise RuntimeError("stalled")

    with pytest.raises(RuntimeError, match="stalled"):
        breaks()
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl.gz"]
    assert len(list(read(tmp_path / "events.jsonl.gz"))) > 100


def test_a_trace_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"record.sessions=0 must be 1 or more"):
        Recording(trace=True, sessions=0)
