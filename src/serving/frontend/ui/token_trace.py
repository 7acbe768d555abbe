"""What is seen of each run on the page: its record, and what its device thought of every token that it wrote."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serving.messages import (
    Begin,
    Command,
    Drafted,
    Event,
    Generate,
    Joined,
    Lost,
    Message,
    Outcome,
    Received,
    Reply,
    Request,
    Work,
    message_nbytes,
)
from serving.metrics.recorder import Record, Recorder

Tell = Callable[[str, Lost | Joined, float], None]
"""(session, news, now)"""


@dataclass(frozen=True, slots=True)
class Look:
    """A token that the device wrote at some position, whoever wrote the one that stands there."""

    token: int
    tops: tuple[int, ...]
    """The three likeliest, best first."""
    scores: Mapping[str, float]


class Watch:
    """An observer; `devices` are the names of the driver's device nodes.

    With `afar` the cloud is another process: what it says is counted where it arrives, and how busy it is nobody knows.
    """

    def __init__(self, devices: Sequence[str], afar: frozenset[str] = frozenset()) -> None:
        self._recorder = Recorder(devices, detail=False)
        self._recorder.records = _Kept()
        self._devices, self._afar = frozenset(devices), afar
        self._looks: dict[str, dict[int, list[Look]]] = {}
        self._at: dict[str, str] = {}
        """The device of each session that is watched."""
        self._lost: dict[str, set[str]] = defaultdict(set)
        """Per device the peers that it cannot reach now, whether or not anybody asks it anything."""
        self.tell: Tell | None = None

    def begin(self, session: str, device: str) -> None:
        self._at[session], self._looks[session] = device, defaultdict(list)

    def forget(self, session: str) -> None:
        del self._at[session], self._looks[session]
        self._recorder.forget(session)

    def lost(self, device: str) -> bool:
        """Has a device lost a peer, as far as it was told?"""
        return bool(self._lost[device])

    def record(self, session: str) -> Record:
        return self._recorder.records[session]

    def look(self, session: str, position: int, token: int) -> Look | None:
        """What the device thought at a position: of this very token where it wrote it, else of its own last one."""
        looks = self._looks[session].get(position, [])
        return next((look for look in looks if look.token == token), looks[-1] if looks else None)

    # The observer.

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        if isinstance(event, Begin) and event.call.session not in self._at:
            return  # it was left before it began: nobody wants its record
        self._recorder.handled(node, event, now, commands)
        match event:
            case Lost() | Joined() if node in self._devices:
                self._said(node, event, now)
            case Received(Reply() | Request() as message) if node in self._afar:
                self._recorder.sent("", node, message, message_nbytes(message), now, now)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self._recorder.ran(node, work, outcome, begin_s, end_s)
        if isinstance(work, Generate) and isinstance(outcome, Drafted) and work.session in self._looks:
            self._drafted(self._looks[work.session], work, outcome)

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        self._recorder.sent(node, to, message, nbytes, now, arrives_s)

    def _said(self, device: str, news: Lost | Joined, now: float) -> None:
        (self._lost[device].add if isinstance(news, Lost) else self._lost[device].discard)(news.peer)
        for session, at in self._at.items():
            if at == device and self.tell:
                self.tell(session, news, now)

    def _drafted(self, looks: dict[int, list[Look]], work: Generate, outcome: Drafted) -> None:
        """Branches yield a token each, a continuation as many as it drafted."""
        behind = work.start + len(work.feed)
        for i, (token, tops) in enumerate(zip(outcome.tokens, outcome.tops, strict=True)):
            position = work.start + len(work.branches[i]) if work.branches else behind + i
            scores = {name: values[i] for name, values in outcome.scores.items() if i < len(values)}
            looks[position].append(Look(token, tops, scores))


class _Kept(dict[str, Record]):
    """Records of the runs under way; what still happens to one that is over goes nowhere."""

    def __missing__(self, session: str) -> Record:
        return Record(session, "", 0, 0.0)
