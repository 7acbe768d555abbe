"""The time lines of chosen requests from an event log: what each node, link and queue did for them, as plain data."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from serving.log.event_log import EventHandled, LogEntry, MessageSent, WorkDone
from serving.log.reader import read_entries
from serving.messages import (
    INF,
    CacheMiss,
    EmitTokens,
    ForwardWork,
    MessageReceived,
    Release,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    StartWork,
    drafts_of,
    session_of,
)

Lanes = dict[str, Any]
"""{session, arrived_s, spans: [{node, lane, kind, begin_s, end_s, text}], tokens: [{at_s, origins}]}; the lane of a
span is `chip`, `queue`, or `to NODE` for a link, its kind one of draft, prefill, verify, decode, queue, uplink,
downlink, link and lost.
"""


def read_lanes(log: Path, sessions: Sequence[str]) -> dict[str, Lanes]:
    """The time line of each of these sessions that the log has. Raises ValueError for a malformed log."""
    return request_lanes(read_entries(log), sessions)


def request_lanes(entries: Iterable[LogEntry], sessions: Sequence[str]) -> dict[str, Lanes]:
    """As `read_lanes`."""
    reader = _LaneReader(frozenset(sessions))
    for entry in entries:
        reader.add(entry)
    return reader.found


class _LaneReader:
    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._devices: dict[str, str] = {}
        self._queued_s: dict[tuple[str, str], float] = {}
        """(node, session) -> since when its request waits there."""
        self.found: dict[str, Lanes] = {}

    def add(self, entry: LogEntry) -> None:
        match entry:
            case EventHandled(node, at_s, event, commands):
                self._on_event(node, at_s, event)
                for command in commands:
                    self._on_command(node, at_s, command)
            case WorkDone():
                for session, kind, text in _parts(entry):
                    self._span(
                        session, entry.node.removesuffix(".chip"), "chip", kind, entry.begin_s, entry.end_s, text
                    )
            case MessageSent():
                self._sent(entry)

    def _on_event(self, node: str, at_s: float, event: Any) -> None:
        match event:
            case RequestArrived(request) if request.session in self._wanted:
                self._devices[request.session] = node
                self.found.setdefault(
                    request.session, {"session": request.session, "arrived_s": at_s, "spans": [], "tokens": []}
                )
            case MessageReceived(Request(slice=seq)) if seq.session in self.found:
                self._queued_s.setdefault((node, seq.session), at_s)
            case MessageReceived(Release(session)):
                self._queued_s.pop((node, session), None)

    def _on_command(self, node: str, at_s: float, command: Any) -> None:
        match command:
            case StartWork(_, ForwardWork(slices=slices)):
                for seq in slices:
                    self._dequeue(node, seq.session, at_s)
            case SendMessage(_, CacheMiss(session)):
                self._dequeue(node, session, at_s)
            case EmitTokens(session=session) if session in self.found and command.tokens:
                self.found[session]["tokens"].append({"at_s": at_s, "origins": list(command.origins)})

    def _dequeue(self, node: str, session: str, at_s: float) -> None:
        since_s = self._queued_s.pop((node, session), None)
        if since_s is not None and at_s > since_s:
            self._span(session, node, "queue", "queue", since_s, at_s, "")

    def _sent(self, entry: MessageSent) -> None:
        message, session = entry.message, session_of(entry.message)
        device = self._devices.get(session)
        kind = "downlink" if device == entry.to else "uplink" if device == entry.node else "link"
        lost = entry.arrives_s == INF
        end_s = entry.sent_s if lost else entry.arrives_s
        text = f"{type(message).__name__}, {entry.nbytes} bytes"
        self._span(session, entry.node, f"to {entry.to}", "lost" if lost else kind, entry.sent_s, end_s, text)

    def _span(self, session: str, node: str, lane: str, kind: str, begin_s: float, end_s: float, text: str) -> None:
        if session in self.found:
            self.found[session]["spans"].append(
                {"node": node, "lane": lane, "kind": kind, "begin_s": begin_s, "end_s": end_s, "text": text}
            )


def _parts(done: WorkDone) -> Iterator[tuple[str, str, str]]:
    """(session, kind, text) of each session's part of a node's work."""
    if isinstance(done.work, ForwardWork):
        batch = f" in a batch of {len(done.work.slices)}" if len(done.work.slices) > 1 else ""
        for seq in done.work.slices:
            yield seq.session, _kind(seq), f"{seq.num_tokens} token{'s' if seq.num_tokens > 1 else ''}{batch}"
        return
    for work, outcome in drafts_of(done.work, done.outcome):
        n = len(outcome.tokens)
        yield (
            work.session,
            "draft" if n else "prefill",
            f"{n} drafted" if n else f"{len(work.input_tokens)} tokens read",
        )


def _kind(seq: SequenceSlice) -> str:
    return "verify" if seq.num_drafts else "decode" if seq.num_tokens == 1 else "prefill"
