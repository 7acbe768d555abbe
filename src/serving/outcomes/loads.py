"""What work costs, counted as `serving.engine` counts it, without running it."""

from collections.abc import Sequence
from typing import TypeAlias

from serving.hardware.exit_depths import Depths, read
from serving.hardware.latency import Load, load
from serving.messages import Exit


class DraftLoads:
    """Loads of the passes of a `Generate` on a drafter of `layers` layers, all of which run in every pass; made once
    and shared by all sessions.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._known: dict[tuple[int, int, int], tuple[Load, ...]] = {}

    def of(self, start: int, fed: int, passes: int) -> tuple[Load, ...]:
        """`fed` rows behind `start` cached tokens, then one row for each further pass; each pass asks the head once."""
        return self._known.get((start, fed, passes)) or self._made(start, fed, passes)

    def write(self, session: str, start: int, fed: int, depths: Sequence[int]) -> tuple[Load, ...]:  # noqa: ARG002
        """A draft; `depths` has an entry a pass."""
        return self.of(start, fed, len(depths))

    def fill(self, session: str, start: int, fed: int) -> tuple[Load, ...]:  # noqa: ARG002
        """The cache is filled, and nothing is written."""
        return (load(self._layers, [(start, fed)]),) if fed else ()

    def branch(self, session: str, start: int, fed: int, depths: Sequence[int]) -> tuple[Load, ...]:  # noqa: ARG002
        """One token after each of several branches of `fed` tokens in all; `depths` has an entry a branch."""
        return (load(self._layers, [(start, fed)], float(len(depths))),)

    def drop(self, session: str) -> None:
        """Nothing is known of single sessions."""

    def _made(self, start: int, fed: int, passes: int) -> tuple[Load, ...]:
        spans = [(start, fed), *((start + fed + i, 1) for i in range(passes - 1))]
        made = self._known[start, fed, passes] = tuple(load(self._layers, [span], 1.0) for span in spans)
        return made


class ExitLoads:
    """The same for a drafter that leaves early: a pass takes along whoever left before it, so that its load depends on
    all that its session did.
    """

    def __init__(self, layers: int, rule: Exit) -> None:
        self._layers, self._checks = layers, rule.layers(layers)
        self._sessions: dict[str, Depths] = {}

    def write(self, session: str, start: int, fed: int, depths: Sequence[int]) -> tuple[Load, ...]:
        """A draft; `depths` says of each pass after how many layers its token was read off."""
        ledger, found = self._cut(session, start), list[Load]()
        for i, depth in enumerate(depths):
            found += self._read(ledger, 1 if i else fed, 1, depth)
        return tuple(found)

    def fill(self, session: str, start: int, fed: int) -> tuple[Load, ...]:
        """The cache is filled by all layers, and nothing is written."""
        ledger = self._cut(session, start)
        return ledger.passed(fed, self._layers) if fed else ()

    def branch(self, session: str, start: int, fed: int, depths: Sequence[int]) -> tuple[Load, ...]:
        """All branches go on until the last one's token is read off; they leave no cache behind."""
        ledger = self._cut(session, start)
        found = self._read(ledger, fed, len(depths), max(depths))
        ledger.truncate(start)
        return found

    def drop(self, session: str) -> None:
        """The session's cache is gone."""
        self._sessions.pop(session, None)

    def _cut(self, session: str, start: int) -> Depths:
        ledger = self._sessions.get(session)
        if ledger is None:
            ledger = self._sessions[session] = Depths(self._layers)
        ledger.truncate(start)
        return ledger

    def _read(self, ledger: Depths, rows: int, asked: int, depth: int) -> tuple[Load, ...]:
        vain = self._checks.index(depth) if depth < self._layers else len(self._checks)
        return read(ledger.passed(rows, depth), asked, vain)


Counting: TypeAlias = DraftLoads | ExitLoads


def counting(layers: int, rule: Exit | None) -> Counting:
    """Who counts the loads of a drafter that leaves early by this rule, or not at all."""
    return ExitLoads(layers, rule) if rule else DraftLoads(layers)


def in_one(loads: Sequence[Load]) -> Load:
    """The sums of forwards of as many layers: the same seconds, but for rounding, in a quarter of the time."""
    _, rows, interactions, cached, head_rows, forwards, further = map(sum, zip(*loads, strict=True))
    return Load(loads[0].layers, rows, interactions, cached, head_rows, int(forwards), int(further))
