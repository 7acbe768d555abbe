"""A batch of drafts against the same works one by one."""

import copy
from typing import Any

import pytest

from serving.core.scores import IMPORTANCE
from serving.engines.draft_batch import execute_one_by_one
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.hardware.latency import batch_load
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    SamplingParams,
)
from tests.support.tiny_models import VARIANTS

ONE = DraftStopRule(1, "confidence", 0.6)
SAMPLING = SamplingParams(0.8, 20, 0.95, 3)


def draft(session: str, start: int, *tokens: int, stop: DraftStopRule = ONE, **how: Any) -> DraftWork:
    return DraftWork(session, start, tokens, stop, requested_scores=("confidence", "margin"), **how)


def rounds() -> list[DraftBatch]:
    """Prompts of several lengths, a cache that is only filled, then drafts beside branches, then a rollback."""
    first = DraftBatch((
        draft("a", 0, 5, 17, 40, 8), draft("b", 0, 61, 9), draft("c", 0, 30, 77, 3, 4, 5, stop=DraftStopRule(0)),
    ))  # fmt: skip
    second = DraftBatch((
        draft("b", 2, 11), draft("a", 4, branches=((7,), (7, 8), (9,))), draft("c", 5, 12),
    ))  # fmt: skip
    third = DraftBatch((draft("c", 3, 21, 22), draft("a", 4, 50), draft("b", 3, 60, sampling=SAMPLING)))
    return [first, second, third]


def engine(variant: str, causal: Any) -> TorchEngine:
    return TorchEngine(decompose(copy.deepcopy(causal(variant))))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_has_the_outcomes_of_its_works_one_by_one(variant: str, causal: Any) -> None:
    together, alone = engine(variant, causal), engine(variant, causal)
    for batch in rounds():
        found, loads = together.execute(batch)
        expected, one_load = execute_one_by_one(batch, alone.execute)  # type: ignore[arg-type]
        assert isinstance(found, DraftBatchOutcome)
        assert loads == one_load
        for ours, theirs in zip(found.outcomes, expected.outcomes, strict=True):
            assert (ours.tokens, ours.top_candidates) == (theirs.tokens, theirs.top_candidates)
            assert (ours.stopped, ours.cached_len) == (theirs.stopped, theirs.cached_len)
            assert ours.scores.keys() == theirs.scores.keys()
            for name, values in theirs.scores.items():
                assert ours.scores[name] == pytest.approx(values, abs=1e-4)
            assert len(ours.draft_probs) == len(theirs.draft_probs)
    after = [each.execute(draft("a", 4, 33, stop=DraftStopRule(5)))[0] for each in (together, alone)]
    assert after[0].tokens == after[1].tokens  # type: ignore[union-attr]


def test_the_load_is_that_of_one_forward(causal: Any) -> None:
    model = engine("llama", causal)
    first, second, _ = rounds()
    layers = len(model.model.layers)
    assert model.execute(first)[1] == (batch_load(layers, [(0, 4), (0, 2), (0, 5)], 2.0),)
    assert model.execute(second)[1] == (batch_load(layers, [(2, 1), (4, 4), (5, 1)], 5.0),)
    (load,) = model.execute(DraftBatch((draft("a", 4, 1), draft("b", 3, stop=DraftStopRule(0)))))[1]
    assert (load.num_forwards, load.extra_sessions) == (1, 0)
    nothing = DraftBatch(tuple(draft(name, 2, stop=DraftStopRule(0)) for name in "abc"))
    assert model.execute(nothing)[1] == ()


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (draft("a", 0, 7), "two works"),
        (draft("b", 0, 7, stop=DraftStopRule(2)), "drafts 2 tokens"),
        (draft("b", 0, 7, early_exit=EarlyExitRule("margin", 0.5, 0.5)), "exits early"),
        (DraftWork("b", 0, (7,), ONE, requested_scores=(IMPORTANCE,)), "importance"),
        (draft("b", 0), "nothing to feed"),
        (draft("b", 0, branches=((1,), ())), "branch without tokens"),
    ],
)
def test_works_that_one_forward_cannot_do_are_refused(other: DraftWork, error: str, causal: Any) -> None:
    with pytest.raises(ValueError, match=error):
        engine("llama", causal).execute(DraftBatch((draft("a", 0, 5), other)))
