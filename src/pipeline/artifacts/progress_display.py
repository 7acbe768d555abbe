"""Progress of running stages: a bar on a terminal, a line every few seconds elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from pipeline.artifacts.stage import Stage

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

ProgressCallback = Callable[[int, int, str], None]
"""Called as `progress(done, total, note)` by a stage; a total of 0 is unknown."""


class StageObserver(Protocol):
    """Is notified of stages. `stage_started` is followed by `stage_finished` or `stage_failed`, never nested."""

    def stage_started(self, stage: Stage) -> None: ...

    def progress(self, done: int, total: int, note: str) -> None: ...

    def stage_finished(self, stage: Stage, seconds: float) -> None: ...

    def stage_failed(self, stage: Stage, message: str) -> None:
        """The stage did not finish; `message` says what is kept."""

    def waiting_for(self, stage: Stage, builder: str) -> None:
        """`builder` builds `stage`, and this process waits for it."""

    def note(self, message: str) -> None: ...


class NullObserver:
    """Displays nothing."""

    def stage_started(self, stage: Stage) -> None: ...

    def progress(self, done: int, total: int, note: str) -> None: ...

    def stage_finished(self, stage: Stage, seconds: float) -> None: ...

    def stage_failed(self, stage: Stage, message: str) -> None: ...

    def waiting_for(self, stage: Stage, builder: str) -> None: ...

    def note(self, message: str) -> None: ...


@dataclass
class ProgressRate:
    """The rate since the first call, without the work that a resumed stage did earlier. Another total, or less that is
    done, begins another piece of work, with a rate of its own.
    """

    _first_done: int = 0
    _started_s: float = 0.0
    _done: int = 0
    _total: int | None = None

    def describe(self, done: int, total: int, note: str, now_s: float) -> str:
        """Work done, rate, time left and the stage's own note, as far as they are known."""
        if total != self._total or done < self._done:
            self._first_done, self._started_s = done, now_s
        self._done, self._total = done, total
        elapsed_s = now_s - self._started_s
        rate = (done - self._first_done) / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{done}/{total} ({100 * done // total} %)" if total else str(done)]
        if rate > 0:
            parts.append(f"{rate:.3g}/s")
            parts += [f"{format_duration((total - done) / rate)} left"] if total else []
        return ", ".join(parts + [note] * bool(note))


def format_duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressLines:
    """A line of progress every `interval_s` seconds: `sweep: 12/40 (30 %), 0.2/s, 2:20 left`.

    `brief`: the first line comes after `interval_s`, too.
    """

    def __init__(
        self, name: str, note: Callable[[str], None], interval_s: float = 10.0,
        now: Callable[[], float] = time.monotonic, brief: bool = False,
    ) -> None:  # fmt: skip
        self._name, self._note, self._interval_s, self._now = name, note, interval_s, now
        self._printed_s = now() if brief else -math.inf
        self._rate = ProgressRate()

    def progress(self, done: int, total: int, note: str = "") -> None:
        now_s = self._now()
        text = self._rate.describe(done, total, note, now_s)
        if now_s - self._printed_s >= self._interval_s:
            self._printed_s = now_s
            self._note(f"{self._name}: {text}")


class LineDisplay:
    """Plain lines: begin and end of each stage, its first progress, and further progress every `interval_s` seconds.

    `brief`: only progress, and only of stages that take longer than `interval_s`.
    """

    def __init__(
        self,
        file: TextIO,
        interval_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
        brief: bool = False,
    ) -> None:
        self._file, self._interval_s, self._now, self._brief = file, interval_s, now, brief
        self._lines = self._lines_of("")

    def _lines_of(self, name: str) -> ProgressLines:
        return ProgressLines(name, self.note, self._interval_s, self._now, self._brief)

    def stage_started(self, stage: Stage) -> None:
        self._lines = self._lines_of(stage.name)
        if not self._brief:
            self.note(f"{stage.name}: started ({stage.key})")

    def progress(self, done: int, total: int, note: str) -> None:
        self._lines.progress(done, total, note)

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        if not self._brief:
            self.note(f"{stage.name}: done in {format_duration(seconds)} ({stage.key})")

    def stage_failed(self, stage: Stage, message: str) -> None:
        self.note(f"{stage.name}: {message}")

    def waiting_for(self, stage: Stage, builder: str) -> None:
        self.note(f"waiting for {stage.key}, which {builder} is building")

    def note(self, message: str) -> None:
        print(message, file=self._file, flush=True)


class BarDisplay:
    """One live line on a terminal, and plain lines for what stays. It starts no thread, so that workers can fork."""

    def __init__(
        self,
        file: TextIO,
        interval_s: float = 0.1,
        now: Callable[[], float] = time.monotonic,
        brief: bool = False,
    ) -> None:
        self._line_display, self._file, self._interval_s, self._now = (
            LineDisplay(file, brief=brief),
            file,
            interval_s,
            now,
        )
        self._rate = ProgressRate()
        self._updated_s = 0.0
        self._bar: RichProgress | None = None

    def stage_started(self, stage: Stage) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        words = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[text]}")]
        console = Console(file=self._file)
        self._bar = RichProgress(words[0], BarColumn(), words[1], console=console, auto_refresh=False, transient=True)
        self._bar.start()
        self._bar.add_task(stage.name, total=None, text=f"started ({stage.key})")
        self._bar.refresh()
        self._rate = ProgressRate()

    def progress(self, done: int, total: int, note: str) -> None:
        now_s = self._now()
        text = self._rate.describe(done, total, note, now_s)
        if self._bar and now_s - self._updated_s >= self._interval_s:
            self._updated_s = now_s
            self._bar.update(self._bar.task_ids[0], completed=done, total=total or None, text=text, refresh=True)

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        self._stop()
        self._line_display.stage_finished(stage, seconds)

    def stage_failed(self, stage: Stage, message: str) -> None:
        self._stop()
        self._line_display.stage_failed(stage, message)

    def waiting_for(self, stage: Stage, builder: str) -> None:
        self._line_display.waiting_for(stage, builder)

    def note(self, message: str) -> None:
        self._line_display.note(message)

    def _stop(self) -> None:
        if self._bar:
            self._bar.stop()
        self._bar = None


def display_for(file: TextIO | None = None, brief: bool = False) -> StageObserver:
    """A bar if `file` (standard error by default) is a terminal, else lines; `brief`: no line for a stage's begin or
    end.
    """
    file = file or sys.stderr
    return BarDisplay(file, brief=brief) if file.isatty() else LineDisplay(file, brief=brief)
