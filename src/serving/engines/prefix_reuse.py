"""An engine for virtual time that runs only what is new of a text, and reports the load of the whole text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from serving.core.cached_prefixes import shared_len
from serving.hardware.executor import DraftInProgress, DraftPoolingEngine, Engine
from serving.hardware.latency import ForwardLoad, batch_load, forward_load
from serving.messages import (
    DraftBatch,
    DraftOutcome,
    DraftWork,
    ForwardWork,
    Outcome,
    SequenceSlice,
    SliceOutcome,
    TokenIds,
    Work,
)

_MAX_TOKENS, _MAX_TEXTS = 16_384, 64
"""At most, of the target's caches that are kept; llama.cpp has 255 sequences. A drafter's cache is needed until its
session ends: the next token of a draft may be work of its own.
"""


class PrefixReusingEngine:
    """Keeps the caches that a policy drops or computes again (`policy/kv_cache=none`), since the same text gives them.

    Verdicts and drafts are those of `engine`, to the rounding of other shapes; loads, which the clock charges, are
    those of the work as it was asked for. Work that is not of a whole model or not of a plain text passes through.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._texts: dict[tuple[str, int | None], TokenIds] = {}
        """(session, first layer; None: the drafter) -> the tokens in its cache, the session used last at the end."""
        self._parts: set[tuple[str, int | None]] = set()
        """Of these the texts that are parts of requests."""

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        if isinstance(work, ForwardWork) and work.span.embedding and work.span.lm_head and not work.requested_outputs:
            return self._forward(work)
        if isinstance(work, DraftWork) and not (work.branches or work.early_exit):
            return self._draft(work)
        for place in _places(work):
            self._texts.pop(place, None)  # their caches change unseen
        return self._engine.execute(work)

    def begin(self, work: DraftWork) -> DraftInProgress | None:
        if not isinstance(self._engine, DraftPoolingEngine):
            return None
        if work.early_exit:
            self._texts.pop((work.session, None), None)  # its cache changes unseen
            return self._engine.begin(work)
        known, same = self._reused(work)
        begun = self._engine.begin(_without(work, same))
        if begun is None:
            return None
        self._texts.pop((work.session, None), None)  # not to be freed while it grows
        return ReusingDraft(begun, work, same, partial(self._drafted, work, known))

    def drop(self, session: str, first: int | None) -> None:
        """Keeps the target's cache of a known text, which a worker drops after each request; all others go."""
        self._parts.discard((session, first))
        if first is None or (session, first) not in self._texts:
            self._texts.pop((session, first), None)
            self._engine.drop(session, first)

    def move(self, session: str, to: str) -> None:
        text = self._texts.pop((session, None), None)
        if text is not None:
            self._texts[to, None] = text
        self._engine.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self._texts.pop((to, None), None)
        self._engine.copy(session, to, length)

    def _forward(self, work: ForwardWork) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        layer = work.span.start_layer
        outcomes, _ = self._engine.execute(
            replace(work, slices=tuple(self._new_part(seq, layer) for seq in work.slices))
        )
        assert isinstance(outcomes, tuple)
        for seq, outcome in zip(work.slices, outcomes, strict=True):
            self._keep((seq.session, layer), self._cached_text(seq, outcome, layer))
            self._note_part((seq.session, layer), outcome)
        self._free_caches()
        return outcomes, (forward_load(work),)

    def _new_part(self, seq: SequenceSlice, layer: int) -> SequenceSlice:
        if seq.start or seq.parents is not None or seq.kept_tree_nodes is not None:
            return seq
        known = self._texts.get((seq.session, layer), ())
        same = shared_len(known, seq.tokens[: seq.num_tokens - seq.num_drafts - 1])
        if not same:
            return seq
        return replace(seq, start=same, num_tokens=seq.num_tokens - same, tokens=seq.tokens[same:])

    def _cached_text(self, seq: SequenceSlice, outcome: SliceOutcome, layer: int) -> TokenIds:
        """The tokens in the session's cache; none where a tree decides later which of them stay."""
        if seq.parents is not None or (outcome.verdict and outcome.verdict.kept_tree_nodes is not None):
            return ()
        rejected = seq.num_drafts - outcome.verdict.accepted if outcome.verdict else 0
        before = self._texts.get((seq.session, layer), ())[: seq.start]
        return (*before, *seq.tokens[: seq.num_tokens - rejected]) if len(before) == seq.start else ()

    def _draft(self, work: DraftWork) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        known, same = self._reused(work)
        outcome, loads = self._engine.execute(_without(work, same))
        self._drafted(work, known, outcome)
        return outcome, _whole_loads(work, loads) if same else loads

    def _reused(self, work: DraftWork) -> tuple[TokenIds, int]:
        """The text in the session's cache, and how many of the input tokens it begins with."""
        known, computed = self._texts.get((work.session, None), ()), max(1, work.num_adopted_drafts)
        if work.start:
            return known, 0
        return known, shared_len(known, work.input_tokens[: max(0, len(work.input_tokens) - computed)])

    def _drafted(self, work: DraftWork, known: TokenIds, outcome: Outcome) -> None:
        assert isinstance(outcome, DraftOutcome)
        before = known[: work.start]
        text = (*before, *work.input_tokens, *outcome.tokens)[: outcome.cached_len]
        self._keep((work.session, None), text if len(before) == work.start else ())

    def _keep(self, place: tuple[str, int | None], text: TokenIds) -> None:
        self._texts.pop(place, None)
        if text:
            self._texts[place] = text

    def _note_part(self, place: tuple[str, int | None], outcome: SliceOutcome) -> None:
        """A request that a scheduler has cut goes on behind what it has in its cache."""
        if outcome.verdict is None:
            self._parts.add(place)
        else:
            self._parts.discard(place)

    def _free_caches(self) -> None:
        """Drops the target's caches that were used longest ago, beyond the limits."""
        kept = [place for place in self._texts if place[1] is not None and place not in self._parts]
        total = sum(len(self._texts[place]) for place in kept)
        for number, place in enumerate(kept[:-1]):
            if total <= _MAX_TOKENS and len(kept) - number <= _MAX_TEXTS:
                return
            total -= len(self._texts.pop(place))
            self._engine.drop(*place)


@dataclass(frozen=True)
class ReusingDraft:
    """A draft that has begun without the first `same` of its input tokens, and is charged for them."""

    begun: DraftInProgress
    work: DraftWork
    same: int
    drafted: Callable[[Outcome], None]

    @property
    def done(self) -> bool:
        return self.begun.done

    @property
    def loads(self) -> tuple[ForwardLoad, ...]:
        loads = tuple(self.begun.loads)
        return _whole_loads(self.work, loads) if self.same and loads else loads

    @property
    def next_load(self) -> ForwardLoad:
        own = self.begun.next_load
        return _whole_loads(self.work, (own,))[0] if self.same and not self.begun.loads else own

    def advance(self) -> None:
        self.begun.advance()

    def finish(self) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        outcome, loads = self.begun.finish()
        self.drafted(outcome)
        return outcome, _whole_loads(self.work, loads) if self.same else loads


def _without(work: DraftWork, same: int) -> DraftWork:
    return replace(work, start=work.start + same, input_tokens=work.input_tokens[same:])


def _whole_loads(work: DraftWork, loads: tuple[ForwardLoad, ...]) -> tuple[ForwardLoad, ...]:
    """The loads, the first of all input tokens."""
    first, *steps = loads
    whole = batch_load(first.layers, [(work.start, len(work.input_tokens))], first.head_tokens)
    return (whole, *steps)


def _places(work: Work) -> list[tuple[str, int | None]]:
    """(session, first layer; None: the drafter) of the caches that the work changes."""
    if isinstance(work, ForwardWork):
        return [(seq.session, work.span.start_layer) for seq in work.slices]
    return [(one.session, None) for one in (work.works if isinstance(work, DraftBatch) else (work,))]
