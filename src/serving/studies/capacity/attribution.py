"""Why verifications were late: because they waited, or because their batch took longer than batches lately do (WISP,
section 5.3, Fig. 8).
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from serving.messages import Command, Event, Forward, Message, Outcome, Received, Request, Work

SPIKE = 1.5
"""WISP, Eq. 21: a batch that takes longer than this many times the recent mean."""
RECENT = 32
"""Batches that the recent mean is over: about two seconds of a busy cloud; the paper gives no W."""


@dataclass(frozen=True, slots=True)
class Verification:
    """One verification: how long it waited, how long its batch took, the latter over the mean of recent batches, and
    whether its answer left after the deadline (Eq. 6, 12)."""

    queue_s: float
    compute_s: float
    spike: float
    late: bool


@dataclass
class Verifications:
    """An observer of the `workers`: what they verified from `begin_s` to `end_s`."""

    workers: Container[str]
    begin_s: float
    end_s: float
    recent: int = RECENT
    events: list[Verification] = field(default_factory=list)
    _waiting: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Session -> (arrived, deadline) of its question."""
    _lately: dict[str, deque[float]] = field(default_factory=dict)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if type(event) is Received and node in self.workers and type(event.message) is Request:
            request = event.message
            if request.rows.check:
                self._waiting[request.rows.session] = now, now + request.slack_s

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is not Forward or node not in self.workers:
            return
        lately = self._lately.setdefault(node, deque(maxlen=self.recent))
        compute_s = end_s - begin_s
        mean_s = sum(lately) / len(lately) if lately else compute_s
        lately.append(compute_s)
        for rows in work.rows:
            known = self._waiting.pop(rows.session, None) if rows.check else None
            if known and self.begin_s <= begin_s < self.end_s:
                arrived_s, deadline_s = known
                late = end_s > deadline_s
                self.events.append(Verification(begin_s - arrived_s, compute_s, compute_s / mean_s, late))

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def shares(events: Sequence[Verification]) -> dict[str, float]:
    """Shares of verifications that were late, and of the late ones by what dominated; mean seconds of each kind.

    What has no event is left out.
    """
    late = [one for one in events if one.late]
    kinds = {
        "in_time": [one for one in events if not one.late],
        "compute": [one for one in late if one.spike > SPIKE],
        "queue": [one for one in late if one.spike <= SPIKE],
    }
    found = {"events": float(len(events)), "late": len(late) / len(events)} if events else {}
    for kind, own in kinds.items():
        if kind != "in_time" and late:
            found[f"{kind}_dominant"] = len(own) / len(late)
        if own:
            found[f"{kind}/queue_s"] = sum(one.queue_s for one in own) / len(own)
            found[f"{kind}/compute_s"] = sum(one.compute_s for one in own) / len(own)
    return found
