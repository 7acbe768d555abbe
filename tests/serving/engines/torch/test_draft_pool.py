"""Drafts that are written together are those that are written one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from serving.engines.prefix_reuse import PrefixReusingEngine
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.hardware.executor import CacheFullError, DraftPoolingEngine
from serving.hardware.latency import ForwardLoad
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, EarlyExitRule, SamplingParams

SCORES = ("confidence", "margin", "importance", "importance_later_mean_last_layer")


def text(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 97, (length,), generator=generator).tolist())


WORKS = (
    DraftWork("a", 0, text(0, 9), DraftStopRule(6), (), SCORES),
    DraftWork("b", 0, text(1, 21), DraftStopRule(3), (), SCORES),
    DraftWork("c", 0, text(2, 4), DraftStopRule(8, "confidence", 0.2), (), ("confidence",)),
    DraftWork("d", 0, text(3, 13), DraftStopRule(5), (), (), SamplingParams(1.0, 0, 0.9, 7)),
    DraftWork("e", 0, text(4, 7), DraftStopRule(6), tuple(range(3, 40)), ("entropy",)),
)
RULES = (EarlyExitRule("confidence", 0.2, 0.75), EarlyExitRule("margin", 0.05, 0.5), None)
EXITING = tuple(
    replace(work, session=f"{work.session}{i}", early_exit=rule) for i, rule in enumerate(RULES) for work in WORKS
)
"""Drafts of two rules of early exit, and of none."""


def new_engine(causal: Any) -> TorchEngine:
    return TorchEngine(decompose(causal("llama")))


Result = tuple[DraftOutcome, tuple[ForwardLoad, ...]]


def alone(engine: Any, works: tuple[DraftWork, ...]) -> list[Result]:
    return [engine.execute(work) for work in works]


def together(engine: Any, works: tuple[DraftWork, ...], late: int = 0) -> list[Result]:
    """The last `late` works begin one forward later than the others."""
    begun = [engine.begin(work) for work in works[: len(works) - late]]
    begun[0].advance()
    begun += [engine.begin(work) for work in works[len(works) - late :]]
    return [each.finish() for each in begun]


def assert_alike(found: list[Result], want: list[Result]) -> None:
    for (outcome, loads), (other, expected) in zip(found, want, strict=True):
        assert loads == expected
        assert replace(outcome, scores={}, draft_probs=()) == replace(other, scores={}, draft_probs=())
        assert outcome.scores.keys() == other.scores.keys()
        for name, values in outcome.scores.items():
            assert values == pytest.approx(other.scores[name], abs=1e-5)


@pytest.mark.parametrize("late", [0, 2])
def test_drafts_that_are_written_together_are_those_written_alone(causal: Any, late: int) -> None:
    want = alone(new_engine(causal), WORKS)
    assert_alike(together(new_engine(causal), WORKS, late), want)
    assert {len(outcome.tokens) for outcome, _ in want} != {6}


@pytest.mark.parametrize("late", [0, 4])
def test_early_exits_together_are_those_alone(causal: Any, late: int) -> None:
    want = alone(new_engine(causal), EXITING)
    assert_alike(together(new_engine(causal), EXITING, late), want)
    assert {depth for outcome, _ in want for depth in outcome.exit_depths} == {0.25, 0.5, 0.75, 1.0}


def test_an_exit_check_runs_the_head_over_all_drafts(causal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rows = new_engine(causal), list[int]()
    head = engine._runner.apply_lm_head

    def counting(normed: Any) -> Any:
        rows.append(len(normed))
        return head(normed)

    monkeypatch.setattr(engine._runner, "apply_lm_head", counting)
    never = EarlyExitRule("confidence", 1.0, 0.5)
    found = together(engine, tuple(replace(work, early_exit=never) for work in WORKS[:2]))
    assert rows == [*[2] * 3 * 3, *[1] * 3 * 3]  # two checks and the last layer, of each token
    assert [len(outcome.tokens) for outcome, _ in found] == [6, 3]


def test_the_next_load_is_the_least_that_comes(causal: Any) -> None:
    """That of leaving at the first exit."""
    for work in EXITING[:5]:
        draft = new_engine(causal).begin(work)
        assert draft
        while not draft.done:
            told, before = draft.next_load, len(draft.loads)
            draft.advance()
            came = draft.loads[before:]
            assert told.layers <= sum(load.layers for load in came)
            if sum(load.layers for load in came) == told.layers:
                assert came[0] == told
        assert draft.finish()[1] == tuple(draft.loads)


def test_later_rounds_go_on_from_the_same_caches(causal: Any) -> None:
    engines = new_engine(causal), new_engine(causal)
    first = together(engines[0], WORKS), alone(engines[1], WORKS)
    assert_alike(*first)
    works = next_round(WORKS, first[1])
    assert len(works) > 2
    assert_alike(together(engines[0], works), alone(engines[1], works))


def test_later_rounds_take_tokens_along_that_left_early(causal: Any) -> None:
    engines = new_engine(causal), new_engine(causal)
    first = together(engines[0], EXITING), alone(engines[1], EXITING)
    works = tuple(
        replace(work, early_exit=work.early_exit and replace(work.early_exit, threshold=1.0))
        for work in next_round(EXITING, first[1])
    )
    want = alone(engines[1], works)
    assert_alike(together(engines[0], works), want)
    assert any(load.num_continued and load.num_tokens > 2 for _, loads in want for load in loads)


def next_round(works: tuple[DraftWork, ...], found: list[Result]) -> tuple[DraftWork, ...]:
    """The same sessions, which keep a draft's first token and go on with two others."""
    return tuple(
        replace(work, start=len(work.input_tokens) + 1, input_tokens=(5, 8), num_adopted_drafts=0)
        for work, (outcome, _) in zip(works, found, strict=True)
        if len(outcome.tokens) > 1
    )


def test_a_forward_adds_a_token_to_every_draft(causal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rows = new_engine(causal), list[int]()
    run = engine._runner.run

    def counting(hidden: Any, inputs: Any, *layers: int) -> Any:
        rows.append(len(inputs))
        return run(hidden, inputs, *layers)

    monkeypatch.setattr(engine._runner, "run", counting)
    found = together(engine, WORKS[:2])
    assert rows == [2, 2, 2, 1, 1, 1]
    assert [len(outcome.tokens) for outcome, _ in found] == [6, 3]


def test_the_next_load_is_the_one_that_comes(causal: Any) -> None:
    draft, told = new_engine(causal).begin(WORKS[0]), list[ForwardLoad]()
    assert draft
    while not draft.done:
        told.append(draft.next_load)
        draft.advance()
    assert tuple(told) == draft.finish()[1]


@pytest.mark.parametrize(
    "change",
    [
        {"branches": ((3,), (4, 5))},
        {"stop_rule": DraftStopRule(0)},
        {"input_tokens": ()},
    ],
    ids=["branches", "no token", "no input"],
)
def test_branches_and_drafts_without_tokens_are_executed_at_once(causal: Any, change: dict[str, Any]) -> None:
    assert new_engine(causal).begin(replace(WORKS[0], **change)) is None


def test_a_second_draft_of_a_session_is_refused(causal: Any) -> None:
    engine = new_engine(causal)
    assert engine.begin(WORKS[0])
    with pytest.raises(ValueError, match="session 'a' has begun a draft"):
        engine.begin(WORKS[0])


def drop(engine: TorchEngine, session: str) -> None:
    engine.drop(session, None)


def move(engine: TorchEngine, session: str) -> None:
    engine.move(session, "elsewhere")


@pytest.mark.parametrize("leave", [drop, move])
def test_a_draft_whose_cache_goes_is_written_no_further(causal: Any, leave: Callable[[TorchEngine, str], None]) -> None:
    engine = new_engine(causal)
    gone, other = engine.begin(WORKS[0]), engine.begin(WORKS[1])
    assert gone
    assert other
    other.advance()
    leave(engine, "a")
    assert gone.done
    assert len(gone.loads) == 1
    again = engine.begin(WORKS[0])
    assert again
    (outcome, loads), (expected, all_loads) = again.finish(), new_engine(causal).execute(WORKS[0])
    assert isinstance(expected, DraftOutcome)
    assert (outcome.tokens, loads) == (expected.tokens, all_loads)
    assert len(gone.loads) == 1


def test_drafts_that_found_the_cache_full_are_forgotten_with_their_caches(causal: Any) -> None:
    engine = TorchEngine(decompose(causal("llama")), budget_tokens=64)
    long = [replace(WORKS[0], session=name, input_tokens=text(0, 30), stop_rule=DraftStopRule(40)) for name in "ab"]
    begun = [engine.begin(work) for work in long]
    assert begun[0]
    with pytest.raises(CacheFullError):
        begun[0].finish()
    for name in "ab":
        engine.drop(name, None)
    further = engine.begin(WORKS[2])
    assert further
    further.finish()
    assert engine.cache.num_blocks == 1


def test_prefixes_are_reused_and_charged(causal: Any) -> None:
    """A device without a cache between rounds computes only what is new, and pays for the whole text."""
    works = tuple(work for work in WORKS if work.sampling is None)
    reusing, plain = PrefixReusingEngine(new_engine(causal)), PrefixReusingEngine(new_engine(causal))
    assert isinstance(reusing, DraftPoolingEngine)
    first = together(reusing, works), alone(plain, works)
    assert_alike(*first)
    again = tuple(replace(work, input_tokens=(*work.input_tokens, 5, 8)) for work in works)
    begun = reusing.begin(again[0])
    assert begun
    assert begun.next_load.num_tokens == len(again[0].input_tokens)
    assert len(begun.begun.inputs) < len(again[0].input_tokens)  # type: ignore[attr-defined]
    assert_alike([begun.finish()], alone(plain, again[:1]))
    assert_alike(together(reusing, again[1:]), alone(plain, again[1:]))
