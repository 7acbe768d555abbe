"""What an event log says of requests, for both time lines: waits at workers, kinds of work, ways of messages."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

from serving.log.event_log import MessageSent
from serving.messages import (
    CacheMiss,
    Command,
    Event,
    ForwardWork,
    MessageReceived,
    Release,
    Request,
    SendMessage,
    SequenceSlice,
    StartWork,
)

WaitEnd: TypeAlias = Literal["batch", "missed", "released", "unserved"]
"""Its batch started, its cache was missing, its session ended, the worker restarted, or the log ended."""


class Wait(NamedTuple):
    """A request's time in a worker's queue."""

    session: str
    begin_s: float
    end_s: float
    until: WaitEnd


class WaitingRequests:
    """The requests queued at workers, from their first part's arrival to the start of their batch.

    Each method returns the waits that it ends. `counts` says of which sessions requests are kept.
    """

    def __init__(self, counts: Callable[[str], bool]) -> None:
        self._counts = counts
        self._since_s: dict[str, dict[str, float]] = defaultdict(dict)

    def num_waiting(self, node: str) -> int:
        return len(self._since_s[node])

    def update(self, node: str, seen: Event | Command, now: float) -> list[Wait]:
        """An event or a command of a node."""
        match seen:
            case MessageReceived(Request(slice=seq)) if self._counts(seq.session):
                self._since_s[node].setdefault(seq.session, now)
            case MessageReceived(Release(session)):
                return self._end(node, [session], now, "released")
            case StartWork(_, ForwardWork(slices=slices)):
                return self._end(node, [seq.session for seq in slices], now, "batch")
            case SendMessage(_, CacheMiss(session)):
                return self._end(node, [session], now, "missed")
        return []

    def abandon(self, node: str, now: float) -> list[Wait]:
        """Ends all waits at a node, which restarts, or the log ends."""
        return self._end(node, list(self._since_s[node]), now, "unserved")

    def _end(self, node: str, sessions: Iterable[str], now: float, until: WaitEnd) -> list[Wait]:
        waiting = self._since_s[node]
        return [Wait(session, waiting.pop(session), now, until) for session in sessions if session in waiting]


def work_kind(seq: SequenceSlice) -> Literal["verify", "decode", "prefill"]:
    """What the target's pass does for a request."""
    return "verify" if seq.num_drafts else "decode" if seq.num_tokens == 1 else "prefill"


def link_kind(sent: MessageSent, device: str | None) -> Literal["downlink", "uplink", "link"]:
    """Which way a message goes, as the device of its session sees it; `link`: between nodes of the cloud."""
    return "downlink" if device == sent.to else "uplink" if device == sent.node else "link"
