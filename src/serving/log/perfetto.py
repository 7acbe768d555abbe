"""Draws a journal as a time line: per node its chip, its queue, its links, its sessions, and arrows from a request
through its batches to its reply.
"""

from collections.abc import Iterable
from pathlib import Path

from serving.log.entries import Born, Entry, Handled, Ran, Sent
from serving.log.tracks import Queues, Sessions, TraceFile, Verdicts
from serving.messages import (
    INF,
    Backlog,
    Begin,
    Command,
    Deliver,
    Drafted,
    Event,
    Forward,
    Generate,
    Message,
    Miss,
    Outcome,
    Received,
    Release,
    Reply,
    Request,
    Rows,
    Send,
    Start,
)


def draw(entries: Iterable[Entry], path: Path, sessions: int = 200) -> None:
    """Writes the Trace Event JSON of the first `sessions` sessions, and of the batches and queues that they met."""
    with TraceFile(path) as file:
        painter = _Painter(file, sessions)
        for entry in entries:
            painter.draw(entry)
        painter.close()


class _Painter:
    def __init__(self, file: TraceFile, limit: int) -> None:
        self._file, self._last_s = file, 0.0
        self._sessions, self._verdicts = Sessions(file, limit), Verdicts(file)
        self._queues = Queues(file, self._sessions)

    def draw(self, entry: Entry) -> None:
        match entry:
            case Born(node, at_s):
                self._born(node, at_s)
            case Handled(node, at_s, event, commands):
                self._last_s = max(self._last_s, at_s)
                self._hear(node, event, at_s)
                for command in commands:
                    self._say(node, command, at_s)
            case Ran():
                self._ran(entry)
            case Sent():
                self._sent(entry)

    def close(self) -> None:
        for open_tracks in (self._verdicts, self._queues, self._sessions):
            open_tracks.close(self._last_s)

    def _born(self, node: str, at_s: float) -> None:
        self._verdicts.abandon(node, at_s)
        self._queues.lose(node, at_s)
        self._sessions.lose(node, at_s)
        self._file.mark(node, "chip", "born", at_s)

    def _hear(self, node: str, event: Event, now: float) -> None:
        match event:
            case Begin(call):
                self._sessions.begin(node, call.session, now)
            case Received(Request(rows=rows)):
                self._queues.arrive(node, rows.session, now)
            case Received(Release(session)):
                self._queues.leave(node, [session], now, "released")
            case Received(Reply() as reply):
                self._verdicts.answer(node, reply, now)

    def _say(self, node: str, command: Command, now: float) -> None:
        match command:
            case Start(_, Forward(rows=rows)):
                self._queues.leave(node, [r.session for r in rows], now, "batch")
            case Send(_, Request() as request) if self._sessions.device.get(request.rows.session) == node:
                self._verdicts.ask(node, request, now)
            case Send(_, Miss(session)):
                self._queues.leave(node, [session], now, "missed")
            case Deliver():
                self._sessions.deliver(node, command, now)
                if command.ending:
                    self._verdicts.leave(node, command.session, now)

    # The chip.

    def _ran(self, ran: Ran) -> None:
        node = ran.node.removesuffix(".chip")
        if isinstance(ran.work, Generate):
            self._drafted(node, ran, ran.work)
            return
        if any(rows.session in self._sessions.device for rows in ran.work.rows):
            self._file.slice(node, "chip", f"batch of {len(ran.work.rows)}", ran.begin_s, ran.end_s,
                             layers=f"{ran.work.span.first}-{ran.work.span.last}", rows=sum(r.n for r in ran.work.rows),
                             sessions=_items(ran.work, ran.outcome))  # fmt: skip
            for rows in ran.work.rows:
                self._verdicts.batch(node, rows, ran.begin_s)

    def _drafted(self, node: str, ran: Ran, work: Generate) -> None:
        if work.session in self._sessions.device:
            n = len(ran.outcome.tokens) if isinstance(ran.outcome, Drafted) else 0
            name = f"draft {n}" if n else "prefill"
            self._file.slice(node, "chip", name, ran.begin_s, ran.end_s, session=work.session, fed=len(work.feed))

    # Links.

    def _sent(self, sent: Sent) -> None:
        session = _session(sent.message)
        device = self._sessions.device.get(session)
        if session and device is None:
            return
        node, name = (sent.to, "downlink") if device == sent.to else (sent.node, "uplink")
        if device not in (sent.node, sent.to):
            name = f"link to {sent.to}"
        lost = sent.arrives_s == INF
        about = {"message": type(sent.message).__name__, "session": session, "nbytes": sent.nbytes}
        end_s = sent.now_s if lost else sent.arrives_s
        self._file.span(node, f"{name}, lost" if lost else name, sent.now_s, end_s, **about)


def _session(message: Message) -> str:
    if isinstance(message, Request):
        return message.rows.session
    return "" if isinstance(message, Backlog) else message.session


def _items(work: Forward, outcome: Outcome) -> list[str]:
    """What each session had in a batch, and what came of it."""
    verdicts = [result.verdict for result in outcome] if isinstance(outcome, tuple) else []
    return [_item(rows) + (f", {v.accepted} accepted" if v and rows.check else "")
            for rows, v in zip(work.rows, verdicts, strict=True)]  # fmt: skip


def _item(rows: Rows) -> str:
    kind = "verify" if rows.check else "decode" if rows.n == 1 else "prefill"
    return f"{rows.session}: {kind} {rows.n} rows at {rows.start}"
