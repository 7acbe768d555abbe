"""c_th and alpha from verified chunks, by hand."""

import pytest

from serving.core.keyed_random import uniform
from serving.core.scores import IMPORTANCE_SCORES
from serving.messages import DraftDecision
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import EarlyExit, LayerwiseExit, NoEarlyExit, ProgressiveExit, SequencewiseExit
from serving.policy.slots.importance_offload import p_confidence
from training.synera.thresholds import acceptance_rate, best_threshold, mean_score, profiling_policy, quantile_threshold


def chunk(accepted: int, confidence: float = 0.5, n: int = 4) -> DraftDecision:
    return DraftDecision("s", 0, tuple(range(n)), {"confidence": (confidence - 0.1, confidence + 0.1)}, accepted)


def test_the_cutoff_is_a_quantile_of_the_confidence_of_fully_accepted_chunks() -> None:
    chunks = [chunk(4, 0.6), chunk(4, 0.9), chunk(4, 0.8), chunk(4, 0.7), chunk(3, 0.1), chunk(0, 0.99)]
    assert [quantile_threshold(chunks, q) for q in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.6, 0.6, 0.7, 0.9])


def test_without_a_fully_accepted_chunk_nothing_is_confident_enough() -> None:
    assert quantile_threshold([chunk(3)], 0.5) == quantile_threshold([], 0.5) == 1.0


def test_the_best_cutoff_parts_accepted_chunks_from_others() -> None:
    chunks = [chunk(4, c) for c in (0.8, 0.85, 0.9, 0.95)] + [chunk(2, c) for c in (0.3, 0.5, 0.6)]
    c_th = best_threshold(chunks, 10.0)
    assert [p_confidence(c, c_th, 10.0) > 0.9 for c in (0.3, 0.5, 0.6)] == [True] * 3
    assert all(p_confidence(c, c_th, 10.0) < 0.5 for c in (0.85, 0.9, 0.95))
    for other in (quantile_threshold(chunks, q) for q in (0.0, 0.5, 1.0)):
        assert parted(chunks, c_th) >= parted(chunks, other)


def parted(chunks: list[DraftDecision], c_th: float) -> float:
    """How much likelier a chunk that was not fully accepted is to be let through."""
    through = [
        [p_confidence(mean_score(c, "confidence"), c_th, 10.0) for c in kind] for kind in (chunks[4:], chunks[:4])
    ]
    return sum(through[0]) / len(through[0]) - sum(through[1]) / len(through[1])


def test_without_an_accepted_chunk_the_best_cutoff_keeps_none_on_the_device() -> None:
    c_th = best_threshold([chunk(1)], 10.0)
    assert [p_confidence(c, c_th, 10.0) for c in (0.1, 0.95)] == [1.0, 1.0]


def test_where_every_chunk_was_accepted_the_best_cutoff_keeps_confident_ones_on_the_device() -> None:
    c_th = best_threshold([chunk(4, 0.9), chunk(4, 0.3)], 10.0)
    sent = [p_confidence(c, c_th, 10.0) for c in (0.1, 0.95)]
    assert sent[0] > 0.95
    assert sent[1] < 0.05


def test_the_best_cutoff_is_no_worse_than_any_other() -> None:
    chunks = [chunk(3 + (uniform(1, i, "right") < i / 200), i / 200) for i in range(200)]
    chunks.sort(key=lambda c: c.accepted != 4)
    right = sum(c.accepted == 4 for c in chunks)
    ordered = [*chunks[right - 4 : right], *chunks[right:]]  # four of the right ones, as `parted` wants them
    best = parted(ordered, best_threshold(ordered, 10.0))
    assert best > 0
    assert all(parted(ordered, i / 97) <= best + 1e-3 for i in range(97))


def test_the_mean_is_over_a_chunks_tokens() -> None:
    assert mean_score(chunk(4, 0.6), "confidence") == pytest.approx(0.6)


@pytest.mark.parametrize(("accepted", "alpha"), [([0, 0], 0.0), ([4, 4], 1.0)])
def test_alpha_of_no_and_of_full_acceptance(accepted: list[int], alpha: float) -> None:
    assert acceptance_rate([chunk(a) for a in accepted]) == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_alpha_is_what_yields_the_mean(alpha: float) -> None:
    """E = (1 - alpha^5) / (1 - alpha) tokens a verification at gamma = 4: 1.9375 at alpha = 0.5."""
    mean = (1 - alpha**5) / (1 - alpha)
    n = 100_000
    whole = int(mean)
    more = round((mean - whole) * n)
    chunks = [chunk(whole)] * more + [chunk(whole - 1)] * (n - more)
    assert acceptance_rate(chunks) == pytest.approx(alpha, abs=1e-4)


def test_alpha_of_known_chunks() -> None:
    """Mean yield (1 + 3) / 2 = 2 with gamma = 2: 1 + a + a^2 = 2, the golden ratio's inverse."""
    assert acceptance_rate([chunk(0, n=2), chunk(2, n=2)]) == pytest.approx(0.6180339887)


def test_short_drafts_at_the_end_of_an_answer_do_not_count() -> None:
    assert acceptance_rate([chunk(4), chunk(0, n=1)]) == pytest.approx(1.0)


def test_without_chunks_the_acceptance_rate_is_0() -> None:
    assert acceptance_rate([]) == 0.0


def test_profiling_verifies_every_draft_and_scores_it() -> None:
    policy = profiling_policy(WindowDraft(4), NoEarlyExit())
    assert policy.lossless
    assert set(policy.requested_scores) == {"confidence", *IMPORTANCE_SCORES}


@pytest.mark.parametrize(
    "early_exit",
    [
        NoEarlyExit(),
        SequencewiseExit(0.0),
        LayerwiseExit(0.5),
        ProgressiveExit(0.5, max_checks=1, sequence_fraction=0.0),
    ],
)
def test_profiled_drafts_skip_the_layers_that_served_ones_skip_and_nothing_else(early_exit: EarlyExit) -> None:
    policy = profiling_policy(WindowDraft(4), early_exit)
    assert policy.early_exit.layer_exit == early_exit.layer_exit
    assert not policy.early_exit.has_sequence_exit
    assert policy.lossless
