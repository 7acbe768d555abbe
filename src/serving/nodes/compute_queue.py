"""A device's chip, where several want it: hops of the route first, then drafts, then drafts ahead."""

from collections import deque
from collections.abc import Callable, Sequence

from serving.messages import Command, DraftWork, ForwardWork, StartWork, Work


class ComputeQueue:
    """One piece of work at a time; what waits and is not wanted any more is never begun.

    Drafting ahead is for idle times (HAT, section 3.5): it begins when nobody else wants the chip.
    """

    def __init__(self) -> None:
        self.running: int | None = None
        """The job that the chip is busy with."""
        self._queues: tuple[deque[StartWork], ...] = (deque(), deque(), deque())

    def submit(self, commands: list[Command], is_wanted: Callable[[int], bool], hop_pending: bool) -> list[Command]:
        """What is left to say once all work that was to be started has joined the queue, with what begins now.

        `hop_pending`: a hop is about to be decided on, at this very instant; nothing else begins before it.
        """
        out: list[Command] = []
        for command in commands:
            if isinstance(command, StartWork):
                self._queues[_priority(command.work)].append(command)
            else:
                out.append(command)
        return out + self._start_next(is_wanted, self._queues[:1] if hop_pending else self._queues)

    def finish(self, job: int) -> None:
        if job == self.running:
            self.running = None

    def _start_next(self, is_wanted: Callable[[int], bool], queues: Sequence[deque[StartWork]]) -> list[Command]:
        if self.running is not None:
            return []
        for queue in queues:
            while queue:
                start = queue.popleft()
                if is_wanted(start.job):
                    self.running = start.job
                    return [start]
        return []


def _priority(work: Work) -> int:
    if isinstance(work, ForwardWork):
        return 0
    return 2 if isinstance(work, DraftWork) and work.branches else 1
