"""Replay: the logged events, told to fresh nodes, must yield the logged commands, batches included.

What was decided, whatever the clock said: by session what its device drafted, sent, had accepted and showed; by
worker its batches.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.log.entries import Born, Entry, Handled
from serving.log.reader import header, read
from serving.messages import (
    INF,
    Begin,
    Chunk,
    Command,
    Deliver,
    Drafted,
    Event,
    Finished,
    Forward,
    Generate,
    Node,
    Request,
    Rows,
    Send,
    Start,
)
from serving.progress import Progress

_WIDTH = 600
"""Characters of an event or a command in a report."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found; it ends at the first difference, after which everything may differ."""

    events: int
    births: int
    commands: int
    difference: str | None

    @property
    def described(self) -> str:
        what = f"{self.events} events of {self.births} nodes, {self.commands} commands"
        return f"{what}: {self.difference or 'identical'}"


def replay(entries: Iterable[Entry], make: Callable[[str], Node]) -> Replayed:
    """Tells the logged events, at their logged times, to the nodes that `make` makes at each birth."""
    nodes: dict[str, Node] = {}
    events = births = said = 0
    for entry in entries:
        if isinstance(entry, Born):
            nodes[entry.node] = make(entry.node)
            births += 1
        elif isinstance(entry, Handled):
            events += 1
            difference = _difference(entry, nodes)
            if difference:
                return Replayed(events, births, said, f"event {events} differs\n{difference}")
            said += len(entry.commands)
    return Replayed(events, births, said, None)


def _difference(entry: Handled, nodes: dict[str, Node]) -> str | None:
    if entry.node not in nodes:
        raise ValueError(f"the log has an event of {entry.node}, which was never born: its beginning is missing")
    try:
        commands = tuple(nodes[entry.node].handle(entry.event, entry.at_s))
    except Exception as error:  # whatever another policy's node stumbles over is the difference
        return _told(entry, [f"  logged    {_cut(entry.commands)}", f"  replayed  raised {error!r}"])
    return None if commands == entry.commands else _told(entry, _compared(entry.commands, commands))


def _told(entry: Handled, lines: list[str]) -> str:
    return "\n".join([f"{entry.node} at {entry.at_s:.6f} s heard {_cut(entry.event)}", *lines])


def _compared(logged: Sequence[Command], replayed: Sequence[Command]) -> list[str]:
    lines = []
    for number, (one, other) in enumerate(zip_longest(logged, replayed), 1):
        if one != other:
            lines += [f"  command {number} logged    {_cut(one)}", f"  command {number} replayed  {_cut(other)}"]
    return lines


def _cut(thing: object) -> str:
    text = repr(thing) if thing is not None else "nothing"
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def journals(run: Path) -> list[Path]:
    """The journals of a run's folder, one a process; raises ValueError when it has none."""
    found = sorted({*run.glob("events*.jsonl"), *run.glob("events*.jsonl.gz")})
    if not found:
        raise ValueError(f"{run} holds no events.jsonl: the run was not recorded; say record.events=true and run again")
    return found


def replay_run(out: Path, *, setup: Setup, run: Path, progress: Progress) -> None:
    """Replays every journal of a recorded run and writes replay.txt; raises ValueError with the first difference."""
    paths, lines = journals(run), []
    for number, path in enumerate(paths, 1):
        replayed = replay(read(path), _cast(setup, path).node)
        progress(number, len(paths), path.name)
        lines.append(f"{path.name}: {replayed.described}")
        if replayed.difference:
            raise ValueError(f"the replay of {path.name} is not the run: {replayed.difference}")
    (out / "replay.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cast(setup: Setup, path: Path) -> Cast:
    """Who took part: the layers and the timeout are facts that only the run knew."""
    facts = header(path).facts
    timeout_s = facts.get("timeout_s")
    if "layers" not in facts:
        raise ValueError(f"{path.name} does not say how many layers the large model had: its run did not finish")
    return Cast(setup, int(facts["layers"]), INF if timeout_s is None else float(timeout_s))


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
