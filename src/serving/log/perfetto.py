"""Draws an event log as a time line: for each node its chip, queue, links and sessions, and arrows from a request
through its batches to its reply.
"""

from collections.abc import Iterable
from pathlib import Path

from serving.log.event_log import EventHandled, LogEntry, MessageSent, NodeCreated, WorkDone
from serving.log.tracks import QueueTracks, SessionTracks, TraceFile, VerdictTracks
from serving.log.waits import link_kind, work_kind
from serving.messages import (
    INF,
    Command,
    DraftBatch,
    DraftOutcome,
    EmitTokens,
    Event,
    ForwardWork,
    MessageReceived,
    Outcome,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    StartWork,
    draft_works,
    drafts_of,
    session_of,
)


def write_trace(entries: Iterable[LogEntry], path: Path, sessions: int = 200) -> None:
    """Writes the Trace Event JSON of the first `sessions` sessions with their batches and queues."""
    with TraceFile(path) as file:
        writer = _TraceWriter(file, sessions)
        for entry in entries:
            writer.add(entry)
        writer.close()


class _TraceWriter:
    def __init__(self, file: TraceFile, limit: int) -> None:
        self._file, self._last_s = file, 0.0
        self._sessions, self._verdicts = SessionTracks(file, limit), VerdictTracks(file)
        self._queues = QueueTracks(file, self._sessions)

    def add(self, entry: LogEntry) -> None:
        match entry:
            case NodeCreated(node, at_s):
                self._node_created(node, at_s)
            case EventHandled(node, at_s, event, commands):
                self._last_s = max(self._last_s, at_s)
                self._on_event(node, event, at_s)
                for command in commands:
                    for session in _worked_for(command):
                        self._sessions.work(node, session, at_s)
                    self._on_command(node, command, at_s)
            case WorkDone():
                self._work_done(entry)
            case MessageSent():
                self._message_sent(entry)

    def close(self) -> None:
        for open_tracks in (self._verdicts, self._queues, self._sessions):
            open_tracks.close(self._last_s)

    def _node_created(self, node: str, at_s: float) -> None:
        self._verdicts.abandon(node, at_s)
        self._queues.abort_all(node, at_s)
        self._sessions.abort_all(node, at_s)
        self._file.instant(node, "chip", "created", at_s)

    def _on_event(self, node: str, event: Event, now: float) -> None:
        self._queues.update(node, event, now)
        match event:
            case RequestArrived(request):
                self._sessions.begin(node, request.session, now)
            case MessageReceived(Reply() as reply):
                self._verdicts.finish(node, reply, now)

    def _on_command(self, node: str, command: Command, now: float) -> None:
        self._queues.update(node, command, now)
        match command:
            case SendMessage(_, Request() as request) if self._sessions.device.get(request.slice.session) == node:
                self._verdicts.start(node, request, now)
            case EmitTokens():
                self._sessions.emit(node, command, now)
                if command.ending:
                    self._verdicts.end_session(node, command.session, now)

    # The chip.

    def _work_done(self, done: WorkDone) -> None:
        node = done.node.removesuffix(".chip")
        if not isinstance(done.work, ForwardWork):
            self._drafted(node, done)
            return
        slices, span = done.work.slices, done.work.span
        if any(seq.session in self._sessions.device for seq in slices):
            self._file.slice(
                node,
                "chip",
                f"batch of {len(slices)}",
                done.begin_s,
                done.end_s,
                layers=f"{span.start_layer}-{span.end_layer}",
                num_tokens=sum(seq.num_tokens for seq in slices),
                sessions=_batch_texts(done.work, done.outcome),
            )
            for seq in slices:
                self._verdicts.add_batch(node, seq, done.begin_s)

    def _drafted(self, node: str, done: WorkDone) -> None:
        drafts = [each for each in drafts_of(done.work, done.outcome) if each[0].session in self._sessions.device]
        if isinstance(done.work, DraftBatch) and drafts:
            texts = [f"{work.session}: {_draft_name(outcome)} of {work.num_inputs}" for work, outcome in drafts]
            self._file.slice(node, "chip", f"draft batch of {len(drafts)}", done.begin_s, done.end_s, sessions=texts)
            return
        for work, outcome in drafts:
            self._file.slice(
                node,
                "chip",
                _draft_name(outcome),
                done.begin_s,
                done.end_s,
                session=work.session,
                input_tokens=len(work.input_tokens),
            )

    # Links.

    def _message_sent(self, entry: MessageSent) -> None:
        session = session_of(entry.message)
        device = self._sessions.device.get(session)
        if session and device is None:
            return
        kind = link_kind(entry, device)
        node, name = entry.to if kind == "downlink" else entry.node, f"link to {entry.to}" if kind == "link" else kind
        lost = entry.arrives_s == INF
        args = {"message": type(entry.message).__name__, "session": session, "nbytes": entry.nbytes}
        end_s = entry.sent_s if lost else entry.arrives_s
        self._file.span(node, f"{name}, lost" if lost else name, entry.sent_s, end_s, **args)


def _worked_for(command: Command) -> Iterable[str]:
    """The sessions for which a node starts to compute, or asks another node."""
    match command:
        case StartWork(_, ForwardWork(slices=slices)):
            return [seq.session for seq in slices]
        case StartWork(_, work):
            return [draft.session for draft in draft_works(work)]
        case SendMessage(_, Request(slice=seq)):
            return [seq.session]
    return []


def _draft_name(outcome: DraftOutcome) -> str:
    return f"draft {len(outcome.tokens)}" if outcome.tokens else "prefill"


def _batch_texts(work: ForwardWork, outcome: Outcome) -> list[str]:
    """Describes each session's part of a batch and its verdict."""
    verdicts = [result.verdict for result in outcome] if isinstance(outcome, tuple) else []
    return [
        _slice_text(seq) + (f", {verdict.accepted} accepted" if verdict and seq.num_drafts else "")
        for seq, verdict in zip(work.slices, verdicts, strict=True)
    ]


def _slice_text(seq: SequenceSlice) -> str:
    return f"{seq.session}: {work_kind(seq)} {seq.num_tokens} tokens at {seq.start}"
