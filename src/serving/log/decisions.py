"""What was decided, whatever the clock said: by session what its device drafted, sent, had accepted and showed; by
worker its batches.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TypeAlias

from serving.log.entries import Entry, Handled
from serving.messages import (
    Begin,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Finished,
    Forward,
    Generate,
    Request,
    Rows,
    Send,
    Start,
)

Decisions: TypeAlias = Mapping[str, list[str]]
"""Session, or node that runs batches -> a line a decision, in order."""


def decisions(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """The decision log; the order is each session's and each worker's own, so journals may be merged in any order of
    equal times.
    """
    log = _Log()
    for entry in entries:
        if isinstance(entry, Handled):
            log.hear(entry.node, entry.event)
            for command in entry.commands:
                log.say(entry.node, command)
    return dict(sorted(log.lines.items()))


def compare(a: Decisions, b: Decisions) -> str | None:
    """The first difference between two decision logs, for people; None when they are one."""
    for name in sorted({*a, *b}):
        for number, (one, other) in enumerate(zip_longest(a.get(name, []), b.get(name, [])), 1):
            if one != other:
                return f"{name}, decision {number}: {one or 'nothing'} <> {other or 'nothing'}"
    return None


class _Log:
    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self._device: dict[str, str] = {}
        """Session -> the node that its user asked."""
        self._jobs: dict[tuple[str, int], str] = {}

    def hear(self, node: str, event: Event) -> None:
        match event:
            case Begin(call):
                self._device[call.session] = node
            case Finished(job, Drafted(tokens=tokens)):
                session = self._jobs.pop((node, job), None)
                if session:
                    self.lines[session].append(f"drafted {_words(tokens)}")

    def say(self, node: str, command: Command) -> None:
        match command:
            case Start(job, Generate(session=session)):
                self._jobs[node, job] = session
            case Start(_, Forward(span, rows)):
                layers = f"{span.first}-{span.last}"
                self.lines[node].append(f"batch of layers {layers}: {', '.join(map(_rows, rows))}")
            case Send(to, Request(rows=rows)):
                own = self._device.get(rows.session) == node
                self.lines[rows.session if own else node].append(f"sent to {to}: {_rows(rows)} {_words(rows.tokens)}")
            case Chunk(session, at, tokens, _, accepted):
                verdict = "kept unasked" if accepted is None else f"accepted {accepted} of {len(tokens)}"
                self.lines[session].append(f"{verdict} at {at}")
            case Deliver(session, tokens, origins, ending):
                if tokens:
                    self.lines[session].append(f"showed {_words(map('{}:{}'.format, origins, tokens))}")
                if ending:
                    self.lines[session].append(f"exited {ending}")


def _words(things: Iterable[object]) -> str:
    return " ".join(map(str, things))


def _rows(rows: Rows) -> str:
    return f"{rows.session}[{rows.start}:{rows.start + rows.n}, {rows.check} drafts]"
