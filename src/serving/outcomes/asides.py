"""Wrong guesses on which a policy drafted ahead, so that a trace of it can say what the drafter wrote there."""

from collections import defaultdict
from collections.abc import Sequence

from serving.hardware.latency import Load
from serving.hardware.timed_executor import Engine
from serving.messages import Drafted, Forward, Generate, Outcome
from serving.outcomes.lookup import Lookup
from serving.outcomes.trace import Recorded

Aside = tuple[int, int, int]
"""(base, length, token), see `Recorded.asides`."""


class Overheard:
    """A drafter's engine, and by session the texts behind which it drafted ahead."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cached: dict[str, list[int]] = defaultdict(list)
        self.texts: dict[str, list[tuple[int, ...]]] = defaultdict(list)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        outcome, loads = self._engine.execute(work)
        if isinstance(work, Generate) and isinstance(outcome, Drafted):
            cached = self._cached[work.session]
            del cached[work.start :]
            self.texts[work.session] += [(*cached, *branch) for branch in work.branches]
            cached += () if work.branches else (*work.feed, *outcome.tokens)
        return outcome, loads

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)


def asides(lookup: Lookup, session: Recorded, texts: Sequence[tuple[int, ...]]) -> dict[Aside, tuple[int, ...]]:
    """Where these texts leave what was recorded of their session, and each text up to and with the token that does."""
    found: dict[Aside, tuple[int, ...]] = {}
    for text in texts:
        place, off = lookup.left(session, (0, 0), text)
        if off is not None:
            found.setdefault((*place, text[off]), text[: off + 1])
    return found
