"""What people read while stages run, on a clock of the test's own."""

import io
import os
from collections.abc import Iterator

import pytest

from pipeline.artifacts.progress_display import (
    BarDisplay,
    LineDisplay,
    ProgressRate,
    StageObserver,
    display_for,
    format_duration,
)
from pipeline.artifacts.stage import Stage

STAGE = Stage("model", "training.fit", {})


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (118, "1:58"), (3723, "1:02:03")])
def test_durations_are_printed_as_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("first", "done", "total", "note", "text"),
    [
        (0, 120, 500, "loss 1.2", "120/500 (24 %), 12/s, 0:32 left, loss 1.2"),
        (100, 120, 500, "", "120/500 (24 %), 2/s, 3:10 left"),
        (None, 120, 500, "", "120/500 (24 %)"),
        (0, 5, 0, "rows", "5, 0.5/s, rows"),
    ],
    ids=["from the start", "resumed", "first call", "unknown total"],
)
def test_progress_shows_the_rate_and_the_remaining_time(
    first: int | None, done: int, total: int, note: str, text: str
) -> None:
    rate = ProgressRate()
    if first is not None:
        rate.describe(first, total, note, 0.0)
    assert rate.describe(done, total, note, 10.0) == text


def ticks() -> Iterator[float]:
    return iter(range(0, 1000, 4))


def run(announce: StageObserver) -> None:
    announce.stage_started(STAGE)
    for done in range(1, 7):
        announce.progress(done, 6, "[loss]")
    announce.stage_finished(STAGE, 28.0)
    announce.waiting_for(STAGE, "process 4711")


def test_progress_lines_are_rate_limited() -> None:
    file, time = io.StringIO(), ticks()
    run(LineDisplay(file, interval_s=10.0, now=lambda: next(time)))
    assert file.getvalue().splitlines() == [
        f"model: started ({STAGE.key})",
        "model: 1/6 (16 %), [loss]",
        "model: 4/6 (66 %), 0.25/s, 0:08 left, [loss]",
        f"model: done in 0:28 ({STAGE.key})",
        f"waiting for {STAGE.key}, which process 4711 is building",
    ]


def test_a_brief_display_has_only_the_progress_of_stages_that_take_long() -> None:
    file, time = io.StringIO(), ticks()
    run(LineDisplay(file, interval_s=10.0, now=lambda: next(time), brief=True))
    assert [line.partition(",")[0] for line in file.getvalue().splitlines()] == [
        "model: 3/6 (50 %)",
        "model: 6/6 (100 %)",
        f"waiting for {STAGE.key}",
    ]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_shows_stage_and_rate_and_leaves_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TERM", "xterm")
    monkeypatch.setitem(os.environ, "COLUMNS", "120")
    file, time = Tty(), ticks()
    run(BarDisplay(file, now=lambda: next(time)))
    assert "model" in file.getvalue()
    assert "6/6 (100 %), 0.25/s, 0:00 left, [loss]" in file.getvalue()
    assert file.getvalue().endswith(f"waiting for {STAGE.key}, which process 4711 is building\n")


def test_a_failed_stage_removes_the_progress_bar() -> None:
    file = Tty()
    bar = BarDisplay(file)
    bar.stage_started(STAGE)
    bar.stage_failed(STAGE, "failed; nothing is kept")
    bar.progress(1, 2, "late")
    assert file.getvalue().endswith("model: failed; nothing is kept\n")


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    assert [type(display_for(file)) for file in (Tty(), io.StringIO())] == [BarDisplay, LineDisplay]


def test_another_piece_of_work_has_a_rate_of_its_own() -> None:
    now, lines = [0.0], io.StringIO()
    display = LineDisplay(lines, interval_s=0.0, now=lambda: now[0])
    for at_s, done, total in (
        (0, 0, 100),
        (1000, 100, 100),
        (1000, 0, 10),
        (1002, 4, 10),
        (1003, 1, 10),
        (1004, 3, 10),
    ):
        now[0] = float(at_s)
        display.progress(done, total, "")
    said = lines.getvalue().splitlines()
    assert [line.partition("), ")[2] for line in said] == [
        "", "0.1/s, 0:00 left", "", "2/s, 0:03 left", "", "2/s, 0:04 left",
    ]  # fmt: skip
