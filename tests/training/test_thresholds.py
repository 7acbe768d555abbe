"""From judged chunks to c_th and alpha, by hand."""

import pytest

from serving.core.keyed_random import luck
from serving.messages import Chunk
from serving.policy.slots.draft import Window
from serving.policy.slots.early_exit import EarlyExit, Layers, NoExit, Progressive, Tail
from serving.policy.slots.importance_offload import p_confidence
from training.synera.thresholds import acceptance, best_cutoff, cutoff, mean_score, profiling_policy


def chunk(accepted: int, confidence: float = 0.5, n: int = 4) -> Chunk:
    return Chunk("s", 0, tuple(range(n)), {"confidence": (confidence - 0.1, confidence + 0.1)}, accepted)


def test_the_cutoff_is_a_quantile_of_the_confidence_of_fully_accepted_chunks() -> None:
    chunks = [chunk(4, 0.6), chunk(4, 0.9), chunk(4, 0.8), chunk(4, 0.7), chunk(3, 0.1), chunk(0, 0.99)]
    assert [cutoff(chunks, q) for q in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.6, 0.6, 0.7, 0.9])


def test_without_a_fully_accepted_chunk_nothing_is_confident_enough() -> None:
    assert cutoff([chunk(3)], 0.5) == cutoff([], 0.5) == 1.0


def test_the_best_cutoff_parts_accepted_chunks_from_others() -> None:
    chunks = [chunk(4, c) for c in (0.8, 0.85, 0.9, 0.95)] + [chunk(2, c) for c in (0.3, 0.5, 0.6)]
    c_th = best_cutoff(chunks, 10.0)
    assert [p_confidence(c, c_th, 10.0) > 0.9 for c in (0.3, 0.5, 0.6)] == [True] * 3
    assert all(p_confidence(c, c_th, 10.0) < 0.5 for c in (0.85, 0.9, 0.95))
    for other in (cutoff(chunks, q) for q in (0.0, 0.5, 1.0)):
        assert parted(chunks, c_th) >= parted(chunks, other)


def parted(chunks: list[Chunk], c_th: float) -> float:
    """How much likelier a chunk that was not fully accepted is to be let through."""
    through = [
        [p_confidence(mean_score(c, "confidence"), c_th, 10.0) for c in kind] for kind in (chunks[4:], chunks[:4])
    ]
    return sum(through[0]) / len(through[0]) - sum(through[1]) / len(through[1])


def test_of_one_kind_alone_nothing_is_confident_enough() -> None:
    assert best_cutoff([chunk(4)], 10.0) == best_cutoff([chunk(1)], 10.0) == 1.0


def test_the_best_cutoff_is_no_worse_than_any_other() -> None:
    chunks = [chunk(3 + (luck(1, i, "right") < i / 200), i / 200) for i in range(200)]
    chunks.sort(key=lambda c: c.accepted != 4)
    right = sum(c.accepted == 4 for c in chunks)
    ordered = [*chunks[right - 4 : right], *chunks[right:]]  # four of the right ones, as `parted` wants them
    best = parted(ordered, best_cutoff(ordered, 10.0))
    assert best > 0
    assert all(parted(ordered, i / 97) <= best + 1e-3 for i in range(97))


def test_the_mean_is_over_a_chunks_tokens() -> None:
    assert mean_score(chunk(4, 0.6), "confidence") == pytest.approx(0.6)


@pytest.mark.parametrize(("accepted", "alpha"), [([0, 0], 0.0), ([4, 4], 1.0)])
def test_alpha_at_its_ends(accepted: list[int], alpha: float) -> None:
    assert acceptance([chunk(a) for a in accepted]) == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_alpha_is_what_yields_the_mean(alpha: float) -> None:
    """E = (1 - alpha^5) / (1 - alpha) tokens a verification at gamma = 4: 1.9375 at alpha = 0.5."""
    mean = (1 - alpha**5) / (1 - alpha)
    n = 100_000
    whole = int(mean)
    more = round((mean - whole) * n)
    chunks = [chunk(whole)] * more + [chunk(whole - 1)] * (n - more)
    assert acceptance(chunks) == pytest.approx(alpha, abs=1e-4)


def test_alpha_by_hand() -> None:
    """Mean yield (1 + 3) / 2 = 2 with gamma = 2: 1 + a + a^2 = 2, the golden ratio's inverse."""
    assert acceptance([chunk(0, n=2), chunk(2, n=2)]) == pytest.approx(0.6180339887)


def test_short_drafts_at_the_end_of_an_answer_do_not_count() -> None:
    assert acceptance([chunk(4), chunk(0, n=1)]) == pytest.approx(1.0)


def test_no_chunks_no_acceptance() -> None:
    assert acceptance([]) == 0.0


def test_profiling_verifies_every_draft_and_scores_it() -> None:
    policy = profiling_policy(Window(4), NoExit())
    assert policy.lossless
    assert policy.probes == ("confidence", "importance")


@pytest.mark.parametrize("early_exit", [NoExit(), Tail(0.0), Layers(0.5), Progressive(0.5, checks=1, after=0.0)])
def test_profiled_drafts_skip_the_layers_that_served_ones_skip_and_nothing_else(early_exit: EarlyExit) -> None:
    policy = profiling_policy(Window(4), early_exit)
    assert policy.early_exit.layer == early_exit.layer
    assert not policy.early_exit.has_tail
    assert policy.lossless
