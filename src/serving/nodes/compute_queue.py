"""A device's chip, where several want it: hops of the route first, then drafts, then drafts ahead."""

from collections import deque
from collections.abc import Callable, Sequence

from serving.messages import Command, Forward, Generate, Start, Work


class Chip:
    """One piece of work at a time; what waits and is not wanted any more is never begun.

    Drafting ahead is for idle times (HAT, section 3.5): it begins when nobody else wants the chip.
    """

    def __init__(self) -> None:
        self.running: int | None = None
        """The job that the chip is busy with."""
        self._waiting: tuple[deque[Start], ...] = (deque(), deque(), deque())

    def take(self, said: list[Command], wanted: Callable[[int], bool], due: bool) -> list[Command]:
        """What is left to say once all work that was to be started has joined the queue, with what begins now.

        `due`: a hop is about to be decided on, at this very instant; nothing else begins before it.
        """
        out: list[Command] = []
        for command in said:
            if isinstance(command, Start):
                self._waiting[_rank(command.work)].append(command)
            else:
                out.append(command)
        return out + self._begin(wanted, self._waiting[:1] if due else self._waiting)

    def done(self, job: int) -> None:
        if job == self.running:
            self.running = None

    def _begin(self, wanted: Callable[[int], bool], queues: Sequence[deque[Start]]) -> list[Command]:
        if self.running is not None:
            return []
        for queue in queues:
            while queue:
                start = queue.popleft()
                if wanted(start.job):
                    self.running = start.job
                    return [start]
        return []


def _rank(work: Work) -> int:
    if isinstance(work, Forward):
        return 0
    return 2 if isinstance(work, Generate) and work.branches else 1
