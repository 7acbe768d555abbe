"""A recorded capacity that begins again when it ends, and its replay from some moment on."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

# A message that just fills what is left must not wait for more because its start was rounded: at a clock of 10^5 s
# and 400 Mbit/s a float is wrong by a thousandth of a byte.
_SLACK_NBYTES = 0.01


@dataclass(frozen=True)
class Loop:
    """How many bytes could have left by each moment of a recording: straight lines between (`times_s`, `nbytes`).

    Both begin with 0, end with the recording's length and total, and are shared by all who replay it.
    """

    times_s: "array[float]"
    nbytes: "array[float]"

    @classmethod
    def of_steps(cls, steps: Iterable[tuple[float, float]], source: str) -> "Loop":
        """From a rate that changes in steps: (until second, Mbit/s) in order of time, from second 0 on.

        Raises ValueError that names the `source` when nothing could have left.
        """
        times_s, nbytes = array("d", [0.0]), array("d", [0.0])
        for until_s, mbps in steps:
            nbytes.append(nbytes[-1] + (until_s - times_s[-1]) * mbps * 125_000)
            times_s.append(until_s)
        if not nbytes[-1] > 0:
            raise ValueError(f"{source}: every rate is 0, no message would ever leave; a trace must carry something")
        return cls(times_s, nbytes)

    @property
    def period_s(self) -> float:
        return self.times_s[-1]

    @property
    def mean_mbps(self) -> float:
        return self.nbytes[-1] / self.period_s / 125_000

    def by(self, at_s: float) -> float:
        """Bytes that could have left from second 0 of the first lap until `at_s`."""
        times_s, nbytes = self.times_s, self.nbytes
        lap, phase_s = divmod(at_s, times_s[-1])
        i = min(bisect_right(times_s, phase_s), len(times_s) - 1)
        share = (phase_s - times_s[i - 1]) / (times_s[i] - times_s[i - 1])
        return lap * nbytes[-1] + nbytes[i - 1] + share * (nbytes[i] - nbytes[i - 1])

    def when(self, amount: float) -> float:
        """The first moment by which `amount` bytes could have left."""
        times_s, nbytes = self.times_s, self.nbytes
        lap, rest = divmod(max(0.0, amount - _SLACK_NBYTES), nbytes[-1])
        i = min(bisect_right(nbytes, rest), len(nbytes) - 1)
        share = min(1.0, (rest + _SLACK_NBYTES - nbytes[i - 1]) / (nbytes[i] - nbytes[i - 1]))
        return lap * times_s[-1] + times_s[i - 1] + share * (times_s[i] - times_s[i - 1])


@dataclass(frozen=True, slots=True)
class Replay:
    """The loop as a `serving.network.link.Rate` for one device, `offset_s` into the recording when its clock says 0."""

    loop: Loop
    offset_s: float = 0.0

    def sent(self, nbytes: float, start: float) -> float:
        if not nbytes > 0:
            return start
        at_s = start + self.offset_s
        return max(start, self.loop.when(self.loop.by(at_s) + nbytes) - self.offset_s)

    def carried(self, start: float, end: float) -> float:
        return self.loop.by(end + self.offset_s) - self.loop.by(start + self.offset_s)
