"""Options that make a run keep its event log and its trace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.drivers.observer import Observer
    from serving.log.event_log import EventLog

EVENTS_FILE = "events.jsonl.gz"
TRACE_FILE = "trace.json.gz"


@dataclass(frozen=True)
class ActiveRecording:
    """The recording of a run in progress."""

    observers: "tuple[Observer, ...]" = ()
    event_log: "EventLog | None" = None

    def add_facts(self, **facts: Any) -> None:
        """Adds facts that a replay needs and only the run knows: `layers`, and `timeout_s` if there is one."""
        if self.event_log:
            self.event_log.add_facts(**facts)


@dataclass(frozen=True)
class RecordingOptions:
    """Raises ValueError if `trace_sessions` is below 1."""

    events: bool = False
    """Write the event log events.jsonl.gz, which `stage=replay` reads."""
    trace: bool = False
    """Write the trace trace.json.gz, which ui.perfetto.dev and chrome://tracing open."""
    trace_sessions: int = 200
    """How many sessions the trace shows, from the first; browsers cannot open a trace of 100,000."""

    def __post_init__(self) -> None:
        if self.trace_sessions < 1:
            raise ValueError(
                f"record.trace_sessions={self.trace_sessions} must be 1 or more; for no trace set record.trace=false"
            )

    @contextmanager
    def start(self, out: Path, facts: Mapping[str, Any] | None = None) -> Iterator[ActiveRecording]:
        """Records into the folder `out`; the trace is written after a run without an error."""
        if not (self.events or self.trace):
            yield ActiveRecording()
            return
        from serving.log.event_log import EventLog
        from serving.log.perfetto import write_trace
        from serving.log.reader import read_entries

        path = out / EVENTS_FILE
        with EventLog(path, facts) as event_log:
            yield ActiveRecording((event_log,), event_log)
        if self.trace:
            write_trace(read_entries(path), out / TRACE_FILE, self.trace_sessions)
        if not self.events:
            path.unlink()
