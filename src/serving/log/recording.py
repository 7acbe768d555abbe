"""What a run keeps of itself beside its results."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.drivers.observer import Observer
from serving.log.event_log import EventLog
from serving.log.perfetto import write_trace
from serving.log.reader import read_entries

EVENTS_FILE = "events.jsonl.gz"
TRACE_FILE = "trace.json.gz"


@dataclass(frozen=True)
class ActiveRecording:
    """The recording of a run that goes on."""

    observers: tuple[Observer, ...] = ()
    event_log: EventLog | None = None

    def add_facts(self, **facts: Any) -> None:
        """Facts that a replay needs and that only the run knows: `layers`, and `timeout_s` where there is one."""
        if self.event_log:
            self.event_log.add_facts(**facts)


@dataclass(frozen=True)
class RecordingOptions:
    """Which files a run leaves for replay and for the eye. Raises ValueError for a time line of no sessions."""

    events: bool = False
    """Write the event log events.jsonl.gz, from which `stage=replay` and other tools tell the run again."""
    trace: bool = False
    """Write the time line trace.json.gz, which ui.perfetto.dev and chrome://tracing open."""
    trace_sessions: int = 200
    """Sessions that the time line shows, the first ones; a browser opens no trace of a hundred thousand."""

    def __post_init__(self) -> None:
        if self.trace_sessions < 1:
            raise ValueError(
                f"record.trace_sessions={self.trace_sessions} must be 1 or more; for no trace say record.trace=false"
            )

    @contextmanager
    def start(self, out: Path, facts: Mapping[str, Any] | None = None) -> Iterator[ActiveRecording]:
        """Records into the folder `out`; the trace is drawn when the run has ended without an error."""
        if not (self.events or self.trace):
            yield ActiveRecording()
            return
        path = out / EVENTS_FILE
        with EventLog(path, facts) as journal:
            yield ActiveRecording((journal,), journal)
        if self.trace:
            write_trace(read_entries(path), out / TRACE_FILE, self.trace_sessions)
        if not self.events:
            path.unlink()
