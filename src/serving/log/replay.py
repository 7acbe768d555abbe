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
from serving.deployment.topology import Topology
from serving.log.entries import EventHandled, LogEntry, NodeCreated
from serving.log.reader import read_entries, read_header
from serving.messages import (
    INF,
    Command,
    DraftDecision,
    DraftOutcome,
    DraftWork,
    EmitTokens,
    Event,
    ForwardWork,
    Node,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    StartWork,
    WorkFinished,
)
from serving.progress import Progress

_MAX_CHARS = 600
"""Characters of an event or a command in a report."""


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found; it ends at the first difference, after which everything may differ."""

    events: int
    nodes: int
    commands: int
    difference: str | None

    @property
    def described(self) -> str:
        what = f"{self.events} events of {self.nodes} nodes, {self.commands} commands"
        return f"{what}: {self.difference or 'identical'}"


def replay(entries: Iterable[LogEntry], make_node: Callable[[str], Node]) -> ReplayResult:
    """Tells the logged events, at their logged times, to the nodes that `make_node` makes at each birth."""
    nodes: dict[str, Node] = {}
    events = births = said = 0
    for entry in entries:
        if isinstance(entry, NodeCreated):
            nodes[entry.node] = make_node(entry.node)
            births += 1
        elif isinstance(entry, EventHandled):
            events += 1
            difference = _difference(entry, nodes)
            if difference:
                return ReplayResult(events, births, said, f"event {events} differs\n{difference}")
            said += len(entry.commands)
    return ReplayResult(events, births, said, None)


def _difference(entry: EventHandled, nodes: dict[str, Node]) -> str | None:
    if entry.node not in nodes:
        raise ValueError(f"the log has an event of {entry.node}, which was never born: its beginning is missing")
    try:
        commands = tuple(nodes[entry.node].handle(entry.event, entry.at_s))
    except Exception as error:  # whatever another policy's node stumbles over is the difference
        return _difference_text(entry, [f"  logged    {_shortened(entry.commands)}", f"  replayed  raised {error!r}"])
    return (
        None if commands == entry.commands else _difference_text(entry, _command_differences(entry.commands, commands))
    )


def _difference_text(entry: EventHandled, lines: list[str]) -> str:
    return "\n".join([f"{entry.node} at {entry.at_s:.6f} s heard {_shortened(entry.event)}", *lines])


def _command_differences(logged: Sequence[Command], replayed: Sequence[Command]) -> list[str]:
    lines = []
    for number, (one, other) in enumerate(zip_longest(logged, replayed), 1):
        if one != other:
            lines += [
                f"  command {number} logged    {_shortened(one)}",
                f"  command {number} replayed  {_shortened(other)}",
            ]
    return lines


def _shortened(thing: object) -> str:
    text = repr(thing) if thing is not None else "nothing"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


def find_event_logs(run: Path) -> list[Path]:
    """The journals of a run's folder, one a process; raises ValueError when it has none."""
    found = sorted({*run.glob("events*.jsonl"), *run.glob("events*.jsonl.gz")})
    if not found:
        raise ValueError(f"{run} holds no events.jsonl: the run was not recorded; say record.events=true and run again")
    return found


def replay_run(out: Path, *, setup: Setup, run: Path, progress: Progress) -> None:
    """Replays every journal of a recorded run and writes replay.txt; raises ValueError with the first difference."""
    paths, lines = find_event_logs(run), []
    for number, path in enumerate(paths, 1):
        replayed = replay(read_entries(path), _load_topology(setup, path).create_node)
        progress(number, len(paths), path.name)
        lines.append(f"{path.name}: {replayed.described}")
        if replayed.difference:
            raise ValueError(f"the replay of {path.name} is not the run: {replayed.difference}")
    (out / "replay.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _load_topology(setup: Setup, path: Path) -> Topology:
    """Who took part: the layers and the timeout are facts that only the run knew."""
    facts = read_header(path).facts
    timeout_s = facts.get("timeout_s")
    if "layers" not in facts:
        raise ValueError(f"{path.name} does not say how many layers the large model had: its run did not finish")
    return Topology(setup, int(facts["layers"]), INF if timeout_s is None else float(timeout_s))


DecisionLog: TypeAlias = Mapping[str, list[str]]
"""Session, or node that runs batches -> a line a decision, in order."""


def decision_log(entries: Iterable[LogEntry]) -> dict[str, list[str]]:
    """The decision log; the order is each session's and each worker's own, so journals may be merged in any order of
    equal times.
    """
    log = _DecisionCollector()
    for entry in entries:
        if isinstance(entry, EventHandled):
            log.on_event(entry.node, entry.event)
            for command in entry.commands:
                log.on_command(entry.node, command)
    return dict(sorted(log.lines.items()))


def first_difference(a: DecisionLog, b: DecisionLog) -> str | None:
    """The first difference between two decision logs, for people; None when they are one."""
    for name in sorted({*a, *b}):
        for number, (one, other) in enumerate(zip_longest(a.get(name, []), b.get(name, [])), 1):
            if one != other:
                return f"{name}, decision {number}: {one or 'nothing'} <> {other or 'nothing'}"
    return None


class _DecisionCollector:
    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self._device_of: dict[str, str] = {}
        """Session -> the node that its user asked."""
        self._jobs: dict[tuple[str, int], str] = {}

    def on_event(self, node: str, event: Event) -> None:
        match event:
            case RequestArrived(call):
                self._device_of[call.session] = node
            case WorkFinished(job, DraftOutcome(tokens=tokens)):
                session = self._jobs.pop((node, job), None)
                if session:
                    self.lines[session].append(f"drafted {_space_separated(tokens)}")

    def on_command(self, node: str, command: Command) -> None:
        match command:
            case StartWork(job, DraftWork(session=session)):
                self._jobs[node, job] = session
            case StartWork(_, ForwardWork(span, rows)):
                layers = f"{span.start_layer}-{span.end_layer}"
                self.lines[node].append(f"batch of layers {layers}: {', '.join(map(_slice_text, rows))}")
            case SendMessage(to, Request(slice=rows)):
                own = self._device_of.get(rows.session) == node
                self.lines[rows.session if own else node].append(
                    f"sent to {to}: {_slice_text(rows)} {_space_separated(rows.tokens)}"
                )
            case DraftDecision(session, at, tokens, _, accepted):
                verdict = "kept unasked" if accepted is None else f"accepted {accepted} of {len(tokens)}"
                self.lines[session].append(f"{verdict} at {at}")
            case EmitTokens(session, tokens, origins, ending):
                if tokens:
                    self.lines[session].append(f"showed {_space_separated(map('{}:{}'.format, origins, tokens))}")
                if ending:
                    self.lines[session].append(f"exited {ending}")


def _space_separated(things: Iterable[object]) -> str:
    return " ".join(map(str, things))


def _slice_text(seq: SequenceSlice) -> str:
    return f"{seq.session}[{seq.start}:{seq.start + seq.num_tokens}, {seq.num_drafts} drafts]"
