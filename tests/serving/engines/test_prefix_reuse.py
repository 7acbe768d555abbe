"""What an engine runs where it keeps the caches that a policy is charged for again."""

import pytest

from serving.engines import prefix_reuse
from serving.engines.prefix_reuse import PrefixReusingEngine
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SequenceSlice,
    SliceOutcome,
    Span,
    Verdict,
    Work,
)

WHOLE = Span(0, 4, embedding=True, lm_head=True)


class Engine:
    """Drafts 9s, accepts one draft, and notes what it runs and drops."""

    def __init__(self) -> None:
        self.ran: list[Work] = []
        self.dropped: list[tuple[str, int | None]] = []
        self.moved: list[tuple[str, str]] = []
        self.copied: list[tuple[str, str, int]] = []

    def execute(self, work: Work):
        self.ran.append(work)
        if isinstance(work, DraftBatch):
            return DraftBatchOutcome(tuple(self._draft(one) for one in work.works)), ()
        if isinstance(work, DraftWork):
            return self._draft(work), (batch_load(4, [(work.start, len(work.input_tokens))], 1),)
        verdicts = [Verdict(min(1, seq.num_drafts), 5) if seq.rule else None for seq in work.slices]
        return tuple(SliceOutcome(verdict, None) for verdict in verdicts), ()

    def _draft(self, work: DraftWork) -> DraftOutcome:
        return DraftOutcome((9,), {}, ((9,),), False, work.start + len(work.input_tokens))

    def drop(self, session: str, first: int | None) -> None:
        self.dropped.append((session, first))

    def move(self, session: str, to: str) -> None:
        self.moved.append((session, to))

    def copy(self, session: str, to: str, length: int) -> None:
        self.copied.append((session, to, length))


def draft(*tokens: int, session: str = "s") -> DraftWork:
    return DraftWork(session, 0, tokens, DraftStopRule(1))


def part(*tokens: int, session: str = "s") -> ForwardWork:
    """A part of a prompt, which nothing verifies."""
    return ForwardWork(WHOLE, (SequenceSlice(session, 0, len(tokens), tokens),), ("",))


def verify(*tokens: int, drafts: int, session: str = "s") -> ForwardWork:
    return ForwardWork(WHOLE, (SequenceSlice(session, 0, len(tokens), tokens, drafts, "greedy"),), ("",))


def test_a_verification_runs_what_its_text_has_new_and_is_charged_for_all():
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    engine.execute(verify(1, 2, 3, 7, 8, drafts=2))  # one of two drafts stands
    engine.drop("s", 0)
    _, (load,) = engine.execute(verify(1, 2, 3, 7, 5, 6, drafts=1))
    seq = inner.ran[-1].slices[0]
    assert (seq.start, seq.num_tokens, seq.tokens) == (4, 2, (5, 6))
    assert load == ForwardLoad(4, 6, 36, 0, 2)
    assert inner.dropped == []


def test_a_draft_runs_what_its_text_has_new_and_is_charged_for_all():
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    engine.execute(draft(1, 2, 3))
    _, (load,) = engine.execute(draft(1, 2, 3, 4, 5))
    assert (inner.ran[-1].start, inner.ran[-1].input_tokens) == (3, (4, 5))
    assert load == ForwardLoad(4, 5, 25, 0, 1)


@pytest.mark.parametrize(
    "other", [DraftBatch((draft(8, 8),)), DraftWork("s", 1, (), DraftStopRule(1), branches=((4,),))]
)
def test_work_that_passes_through_leaves_nothing_known(other):
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    for work in (draft(1, 2, 3), other, draft(1, 2, 3, 4)):
        engine.execute(work)
    assert (inner.ran[-1].start, inner.ran[-1].input_tokens) == (0, (1, 2, 3, 4))


def test_the_texts_used_longest_ago_go_first(monkeypatch):
    monkeypatch.setattr(prefix_reuse, "_MAX_TOKENS", 5)
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    engine.execute(verify(1, 2, 3, drafts=0, session="a"))
    engine.execute(verify(1, 2, 3, drafts=0, session="b"))
    assert inner.dropped == [("a", 0)]
    engine.drop("b", 0)
    engine.drop("c", None)
    assert inner.dropped == [("a", 0), ("c", None)]


def test_so_many_texts_are_kept_however_short(monkeypatch):
    monkeypatch.setattr(prefix_reuse, "_MAX_TEXTS", 2)
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    for session in "abcd":
        engine.execute(verify(1, 2, drafts=0, session=session))
    assert inner.dropped == [("a", 0), ("b", 0)]


def test_the_part_of_a_request_that_goes_on_is_kept(monkeypatch):
    monkeypatch.setattr(prefix_reuse, "_MAX_TEXTS", 1)
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    engine.execute(part(1, 2, session="a"))
    for session in "bc":
        engine.execute(verify(1, 2, drafts=0, session=session))
    assert inner.dropped == [("b", 0)]
    engine.drop("a", 0)
    engine.execute(verify(1, 2, drafts=0, session="a"))
    engine.execute(verify(1, 2, drafts=0, session="d"))
    assert inner.dropped == [("b", 0), ("c", 0), ("a", 0)]


def test_a_moved_cache_goes_on_under_its_new_name():
    inner = Engine()
    engine = PrefixReusingEngine(inner)
    engine.execute(draft(1, 2, 3))
    engine.move("s", "t")
    assert inner.moved == [("s", "t")]
    engine.execute(draft(1, 2, 3, 4, 5, session="t"))
    assert (inner.ran[-1].start, inner.ran[-1].input_tokens) == (3, (4, 5))
    engine.execute(draft(1, 2, 3))
    assert inner.ran[-1].start == 0
