"""What a run keeps of itself beside its results."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.drivers.observer import Observer
from serving.log.event_log import Journal
from serving.log.perfetto import draw
from serving.log.reader import read

EVENTS = "events.jsonl.gz"
TRACE = "trace.json.gz"


@dataclass(frozen=True)
class Recorded:
    """The recording of a run that goes on."""

    observers: tuple[Observer, ...] = ()
    journal: Journal | None = None

    def note(self, **facts: Any) -> None:
        """Facts that a replay needs and that only the run knows: `layers`, and `timeout_s` where there is one."""
        if self.journal:
            self.journal.note(**facts)


@dataclass(frozen=True)
class Recording:
    """Which files a run leaves for replay and for the eye. Raises ValueError for a time line of no sessions."""

    events: bool = False
    """Write the event log events.jsonl.gz, from which `stage=replay` and other tools tell the run again."""
    trace: bool = False
    """Write the time line trace.json.gz, which ui.perfetto.dev and chrome://tracing open."""
    sessions: int = 200
    """Sessions that the time line shows, the first ones; a browser opens no trace of a hundred thousand."""

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise ValueError(f"record.sessions={self.sessions} must be 1 or more; for no trace say record.trace=false")

    @contextmanager
    def open(self, out: Path, facts: Mapping[str, Any] | None = None) -> Iterator[Recorded]:
        """Records into the folder `out`; the trace is drawn when the run has ended without an error."""
        if not (self.events or self.trace):
            yield Recorded()
            return
        path = out / EVENTS
        with Journal(path, facts) as journal:
            yield Recorded((journal,), journal)
        if self.trace:
            draw(read(path), out / TRACE, self.sessions)
        if not self.events:
            path.unlink()
