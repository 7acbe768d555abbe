"""What became of everything that was asked during the soak."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.hosts import NEW_TOKENS

LOST_WITH_DEVICE = "lost with its device"


@dataclass
class SoakResults:
    """`problems` is empty when the soak is passed."""

    unanswered: dict[str, int] = field(default_factory=dict)
    """Session -> its device."""
    endings: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Prompt -> what was answered with the cloud's help alone: always the same."""
    problems: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    """What is still held for sessions although all are over, by the node that holds it and the name of the table."""
    longest_s: float = 0.0
    num_asked: int = 0

    @property
    def num_answered(self) -> int:
        return sum(self.endings.values()) - self.endings[LOST_WITH_DEVICE]

    def record(self, word: str, value: Any) -> None:
        match word:
            case "asked":
                self.num_asked += 1
                self.unanswered[value[0]] = value[1]
            case "ended":
                self._ended(*value)
            case "died":
                self.problems.append(f"the process {value} died of itself")
            case "twice":
                self.problems.append(f"{value} was delivered to after its end")
            case "error":
                self.problems.append(value)
            case "left":
                self.add_leftovers(*value)

    def add_leftovers(self, node: str, held: Mapping[str, int]) -> None:
        """All sessions of a node are over, and this is what it holds for them."""
        self.left.update({f"{name} in {node}": n for name, n in held.items() if n})

    def close(self) -> None:
        """Nothing more is asked: what was not answered, and what is left, are problems."""
        self.problems += [f"{session} was never answered" for session in self.unanswered]
        self.problems += [f"left: {n} {name}" for name, n in sorted(self.left.items())]

    def _ended(
        self, session: str, prompt: int | None, ending: str, text: tuple[int, ...], origins: Counter[str], wait_s: float
    ) -> None:
        self.endings[ending] += 1
        self.origins += origins
        self.longest_s = max(self.longest_s, wait_s)
        device = self.unanswered.pop(session, None)
        if device is None:
            self.problems.append(f"{session} ended twice")
        if ending == "failed" or (ending == "complete" and len(text) != NEW_TOKENS):
            self.problems.append(f"{session} ended {ending} with {len(text)} tokens")
        if device is not None and device % 2 == 0 and origins["offline"]:
            self.problems.append(f"{session} waits for the cloud, yet {origins['offline']} tokens were written without")
        own = ending == "complete" and not origins["offline"]
        if own and prompt is not None and self.texts.setdefault(prompt, text) != text:
            self.problems.append(f"{session} got another text than others who asked the same")

    def device_lost(self, numbers: set[int]) -> None:
        """Devices were killed, and what they were asked with them."""
        for session in [s for s, number in self.unanswered.items() if number in numbers]:
            del self.unanswered[session]
            self.endings[LOST_WITH_DEVICE] += 1
