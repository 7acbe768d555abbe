"""Replays an event log: fresh nodes that handle the logged events must return the logged commands.

Also extracts a decision log, which ignores times: for each session the tokens drafted, sent, accepted and emitted, for
each worker its batches.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.log.event_log import EventHandled, LogEntry, NodeCreated
from serving.log.reader import read_entries, read_header
from serving.messages import (
    INF,
    Command,
    DraftBatch,
    DraftDecision,
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
    drafts_of,
)
from serving.progress import Progress

_MAX_CHARS = 600
"""Characters of an event or a command in a report."""


@dataclass(frozen=True)
class ReplayResult:
    """Counts of a replay, which ends at the first difference."""

    events: int
    nodes: int
    commands: int
    difference: str | None

    @property
    def described(self) -> str:
        what = f"{self.events} events of {self.nodes} nodes, {self.commands} commands"
        return f"{what}: {self.difference or 'identical'}"


def replay(entries: Iterable[LogEntry], make_node: Callable[[str], Node]) -> ReplayResult:
    """Passes the logged events, at their logged times, to nodes that `make_node` creates when the log does."""
    nodes: dict[str, Node] = {}
    num_events = num_nodes = num_commands = 0
    for entry in entries:
        if isinstance(entry, NodeCreated):
            nodes[entry.node] = make_node(entry.node)
            num_nodes += 1
        elif isinstance(entry, EventHandled):
            num_events += 1
            difference = _difference(entry, nodes)
            if difference:
                return ReplayResult(num_events, num_nodes, num_commands, f"event {num_events} differs\n{difference}")
            num_commands += len(entry.commands)
    return ReplayResult(num_events, num_nodes, num_commands, None)


def _difference(entry: EventHandled, nodes: dict[str, Node]) -> str | None:
    if entry.node not in nodes:
        raise ValueError(
            f"the log has an event of {entry.node}, which was never created: the start of the log is missing"
        )
    try:
        commands = tuple(nodes[entry.node].handle(entry.event, entry.at_s))
    except Exception as error:  # a node of another policy may raise anything
        return _difference_text(entry, [f"  logged    {_shortened(entry.commands)}", f"  replayed  raised {error!r}"])
    return (
        None if commands == entry.commands else _difference_text(entry, _command_differences(entry.commands, commands))
    )


def _difference_text(entry: EventHandled, lines: list[str]) -> str:
    return "\n".join([f"{entry.node} at {entry.at_s:.6f} s handled {_shortened(entry.event)}", *lines])


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
    """Returns the event logs in a run's folder, one per process. Raises ValueError if there is none."""
    found = sorted({*run.glob("events*.jsonl"), *run.glob("events*.jsonl.gz")})
    if not found:
        raise ValueError(f"{run} holds no events.jsonl: the run was not recorded; set record.events=true and run again")
    return found


def unread_replay_run(*, setup: Setup, **_: object) -> tuple[object, ...]:
    """Artifacts of the setup that `replay_run` does not read."""
    return setup.unread_artifacts


def replay_run(out: Path, *, setup: Setup, run: Path, progress: Progress) -> None:
    """Replays all event logs of a run and writes replay.txt. Raises ValueError with the first difference."""
    paths, lines = find_event_logs(run), []
    for number, path in enumerate(paths, 1):
        replayed = replay(read_entries(path), _load_topology(setup, path).create_node)
        progress(number, len(paths), path.name)
        lines.append(f"{path.name}: {replayed.described}")
        if replayed.difference:
            raise ValueError(f"the replay of {path.name} is not the run: {replayed.difference}")
    (out / "replay.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _load_topology(setup: Setup, path: Path) -> Topology:
    """Returns the run's topology; number of layers and timeout come from the log's facts."""
    facts = read_header(path).facts
    timeout_s = facts.get("timeout_s")
    if "layers" not in facts:
        raise ValueError(f"{path.name} does not say how many layers the large model had: its run did not finish")
    return Topology(setup, int(facts["layers"]), INF if timeout_s is None else float(timeout_s))


DecisionLog: TypeAlias = Mapping[str, list[str]]
"""Session, or node that runs batches -> one line per decision, in order."""


def decision_log(entries: Iterable[LogEntry]) -> dict[str, list[str]]:
    """Lines are ordered within a session or worker only, so entries of equal times may come in any order."""
    collector = _DecisionCollector()
    for entry in entries:
        if isinstance(entry, EventHandled):
            collector.on_event(entry.node, entry.event)
            for command in entry.commands:
                collector.on_command(entry.node, command)
    return dict(sorted(collector.lines.items()))


def first_difference(a: DecisionLog, b: DecisionLog) -> str | None:
    """Describes the first difference between two decision logs; None if they are equal."""
    for name in sorted({*a, *b}):
        for number, (one, other) in enumerate(zip_longest(a.get(name, []), b.get(name, [])), 1):
            if one != other:
                return f"{name}, decision {number}: {one or 'nothing'} <> {other or 'nothing'}"
    return None


class _DecisionCollector:
    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self._device_of: dict[str, str] = {}
        """Session -> device."""
        self._draft_jobs: dict[tuple[str, int], DraftWork | DraftBatch] = {}

    def on_event(self, node: str, event: Event) -> None:
        match event:
            case RequestArrived(request):
                self._device_of[request.session] = node
            case WorkFinished(job, outcome):
                work = self._draft_jobs.pop((node, job), None)
                for draft, drafted in drafts_of(work, outcome) if work else ():
                    self.lines[draft.session].append(f"drafted {_space_separated(drafted.tokens)}")

    def on_command(self, node: str, command: Command) -> None:
        match command:
            case StartWork(job, DraftWork() | DraftBatch() as work):
                self._draft_jobs[node, job] = work
            case StartWork(_, ForwardWork(span, slices)):
                layers = f"{span.start_layer}-{span.end_layer}"
                self.lines[node].append(f"batch of layers {layers}: {', '.join(map(_slice_text, slices))}")
            case SendMessage(to, Request(slice=seq)):
                own = self._device_of.get(seq.session) == node
                self.lines[seq.session if own else node].append(
                    f"sent to {to}: {_slice_text(seq)} {_space_separated(seq.tokens)}"
                )
            case DraftDecision(session, at):
                self.lines[session].append(f"{_verdict_text(command)} at {at}")
            case EmitTokens(session, tokens, origins, ending):
                if tokens:
                    self.lines[session].append(f"emitted {_space_separated(map('{}:{}'.format, origins, tokens))}")
                if ending:
                    self.lines[session].append(f"ended {ending}")


def _verdict_text(decision: DraftDecision) -> str:
    if decision.replaced:
        return f"replaced {len(decision.tokens)} drafts"
    accepted, drafts = decision.accepted, len(decision.tokens)
    return "kept without verification" if accepted is None else f"accepted {accepted} of {drafts}"


def _space_separated(things: Iterable[object]) -> str:
    return " ".join(map(str, things))


def _slice_text(seq: SequenceSlice) -> str:
    return f"{seq.session}[{seq.start}:{seq.start + seq.num_tokens}, {seq.num_drafts} drafts]"
