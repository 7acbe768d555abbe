"""Names for jobs and timers that no two parts of one node share."""

from dataclasses import dataclass


@dataclass
class IdGenerator:
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last
