"""The time lines of chosen requests from an event log: what each node, link and queue did for them, as plain data."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from serving.log.event_log import EventHandled, LogEntry, MessageSent, NodeCreated, WorkDone
from serving.log.reader import read_entries
from serving.log.waits import Wait, WaitingRequests, link_kind, work_kind
from serving.messages import (
    INF,
    Command,
    EmitTokens,
    Event,
    ForwardWork,
    RequestArrived,
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
        self.found: dict[str, Lanes] = {}
        self._requests = WaitingRequests(self.found.__contains__)

    def add(self, entry: LogEntry) -> None:
        match entry:
            case NodeCreated(node, at_s):
                self._waited(node, self._requests.abandon(node, at_s))
            case EventHandled(node, at_s, event, commands):
                for seen in (event, *commands):
                    self._waited(node, self._requests.update(node, seen, at_s))
                    self._seen(node, at_s, seen)
            case WorkDone():
                for session, kind, text in _parts(entry):
                    self._span(
                        session, entry.node.removesuffix(".chip"), "chip", kind, entry.begin_s, entry.end_s, text
                    )
            case MessageSent():
                self._sent(entry)

    def _seen(self, node: str, at_s: float, seen: Event | Command) -> None:
        match seen:
            case RequestArrived(request) if request.session in self._wanted:
                self._devices[request.session] = node
                self.found.setdefault(
                    request.session, {"session": request.session, "arrived_s": at_s, "spans": [], "tokens": []}
                )
            case EmitTokens(session=session) if session in self.found and seen.tokens:
                self.found[session]["tokens"].append({"at_s": at_s, "origins": list(seen.origins)})

    def _waited(self, node: str, waits: Iterable[Wait]) -> None:
        for wait in waits:
            if wait.end_s > wait.begin_s:
                text = "" if wait.until == "batch" else wait.until
                self._span(wait.session, node, "queue", "queue", wait.begin_s, wait.end_s, text)

    def _sent(self, entry: MessageSent) -> None:
        message, session = entry.message, session_of(entry.message)
        kind = link_kind(entry, self._devices.get(session))
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
            yield seq.session, work_kind(seq), f"{seq.num_tokens} token{'s' if seq.num_tokens > 1 else ''}{batch}"
        return
    for work, outcome in drafts_of(done.work, done.outcome):
        n = len(outcome.tokens)
        yield (
            work.session,
            "draft" if n else "prefill",
            f"{n} drafted" if n else f"{len(work.input_tokens)} tokens read",
        )
