"""Job and timer ids, unique within one node."""

from dataclasses import dataclass


@dataclass
class IdGenerator:
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last
