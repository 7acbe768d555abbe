"""What runs on a device's chip, and when: one piece of work at a time, in this order of kinds."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from serving.messages import (
    Command,
    DraftBatch,
    DraftBatchOutcome,
    DraftWork,
    ForwardWork,
    StartWork,
    Work,
    WorkFailed,
    WorkFinished,
    draft_works,
)


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """Work that the chip has finished, or a draft of a batch that it has finished."""

    event: WorkFinished | WorkFailed
    session: str
    """The session that drafted; "": a hop of the target ran."""
    failed_in_batch: bool = False
    """True if the draft failed with others, perhaps because of one of them: it begins anew, in a job of its own."""


class ComputeQueue:
    """Runs one piece of work at a time on the device's chip: target hops first, then drafts, then lookahead drafts.

    Lookahead uses idle time only (HAT, section 3.5). The queue drops work that has become useless before it starts.

    Args:
        ids: for jobs that are batches.
        batch_drafts: True: all drafts that wait, lookahead included, run in one forward.
    """

    def __init__(self, ids: Iterator[int], batch_drafts: bool = False) -> None:
        self._ids, self._batch_drafts = ids, batch_drafts
        self.running: StartWork | None = None
        """The job on the chip; None: idle."""
        self.started_s = 0.0
        """When it began."""
        self._parts: tuple[StartWork, ...] = ()
        """What that job consists of: the drafts of a batch, or the job itself."""
        self._queues: tuple[deque[StartWork], ...] = (deque(), deque(), deque())
        self.quarantined: set[str] = set()
        """Sessions of a batch of drafts that failed. The next draft of each runs alone: its failure ends no other."""

    def add(self, commands: Sequence[Command]) -> list[Command]:
        """Queues the `StartWork` commands; returns the others."""
        others: list[Command] = []
        for command in commands:
            if isinstance(command, StartWork):
                self._queues[_priority(command.work)].append(command)
            else:
                others.append(command)
        return others

    def add_passes(self, commands: Sequence[Command]) -> list[Command]:
        """As `add`, of the target's passes alone: drafts have other chips."""
        others: list[Command] = []
        for command in commands:
            is_pass = isinstance(command, StartWork) and isinstance(command.work, ForwardWork)
            others += self.add([command]) if is_pass else [command]
        return others

    def runs(self, job: int) -> bool:
        """True if this job is on the chip."""
        return self.running is not None and self.running.job == job

    def has_begun(self, job: int) -> bool:
        """True if this job is on the chip, alone or in a batch."""
        return any(start.job == job for start in self._parts)

    def has_drafts(self, is_wanted: Callable[[StartWork], bool]) -> bool:
        """True if a draft runs, or waits and is wanted."""
        if self.running and _priority(self.running.work) > 0:
            return True
        for queue in self._queues[1:]:
            while queue and not is_wanted(queue[0]):
                queue.popleft()
            if queue:
                return True
        return False

    def start_next(self, is_wanted: Callable[[StartWork], bool], hop_pending: bool, now: float) -> list[Command]:
        """The next work, if the chip is idle and some is wanted.

        Args:
            is_wanted: True for work with an outcome that a session or the worker still uses.
            hop_pending: True if the local worker forms a batch at this instant; no draft starts before it.
        """
        if self.running is not None:
            return []
        start = self._take(is_wanted, self._queues[:1] if hop_pending else self._queues)
        if start is None:
            return []
        self._parts = (start,)
        if self._batch_drafts and _priority(start.work) > 0:
            start = self._with_others(start, is_wanted)
        self.running, self.started_s = start, now
        return [start]

    def finish(self, event: WorkFinished | WorkFailed) -> Sequence[FinishedWork]:
        """The chip is idle now. Returns the job, or each draft of a batch."""
        if not self.runs(event.job):
            return []
        parts, self._parts, self.running = self._parts, (), None
        sessions = [_drafting_session(start.work) for start in parts]
        if len(parts) == 1:
            self.quarantined.discard(sessions[0])
            return [FinishedWork(event, sessions[0])]
        if isinstance(event, WorkFinished) and isinstance(event.outcome, DraftBatchOutcome):
            return [
                FinishedWork(WorkFinished(start.job, own), session)
                for start, session, own in zip(parts, sessions, event.outcome.outcomes, strict=True)
            ]
        self.quarantined.update(sessions)
        return [
            FinishedWork(WorkFailed(start.job), session, failed_in_batch=True)
            for start, session in zip(parts, sessions, strict=True)
        ]

    def _take(self, is_wanted: Callable[[StartWork], bool], queues: Sequence[deque[StartWork]]) -> StartWork | None:
        """The next wanted work, removed from its queue; None: there is none."""
        for queue in queues:
            while queue:
                start = queue.popleft()
                if is_wanted(start):
                    return start
        return None

    def _with_others(self, first: StartWork, is_wanted: Callable[[StartWork], bool]) -> StartWork:
        """One job of this draft and all others that wait; the draft itself if there are none, or it is quarantined."""
        if _drafting_session(first.work) in self.quarantined:
            return first
        together = [first]
        for queue in self._queues[1:]:
            waiting = [start for start in queue if is_wanted(start)]
            alone = [start for start in waiting if _drafting_session(start.work) in self.quarantined]
            together += [start for start in waiting if start not in alone] if alone else waiting
            queue.clear()
            queue.extend(alone)
        if len(together) == 1:
            return first
        self._parts = tuple(together)
        return StartWork(next(self._ids), DraftBatch(tuple([w for start in together for w in draft_works(start.work)])))


def _drafting_session(work: Work) -> str:
    return "" if isinstance(work, ForwardWork) else work.session


def _priority(work: Work) -> int:
    if isinstance(work, ForwardWork):
        return 0
    return 2 if isinstance(work, DraftWork) and work.branches else 1
