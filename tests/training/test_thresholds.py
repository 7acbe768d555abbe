"""From judged chunks to c_th and alpha, by hand."""

import pytest

from serving.messages import Chunk
from training.thresholds import acceptance, cutoff, mean_score, profiling_policy


def chunk(accepted: int, confidence: float = 0.5, n: int = 4) -> Chunk:
    return Chunk("s", 0, tuple(range(n)), {"confidence": (confidence - 0.1, confidence + 0.1)}, accepted)


def test_the_cutoff_is_a_quantile_of_the_confidence_of_fully_accepted_chunks() -> None:
    chunks = [chunk(4, 0.6), chunk(4, 0.9), chunk(4, 0.8), chunk(4, 0.7), chunk(3, 0.1), chunk(0, 0.99)]
    assert [cutoff(chunks, q) for q in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.6, 0.6, 0.7, 0.9])


def test_without_a_fully_accepted_chunk_nothing_is_confident_enough() -> None:
    assert cutoff([chunk(3)], 0.5) == cutoff([], 0.5) == 1.0


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
    from serving.slots.draft import Window

    policy = profiling_policy(Window(4))
    assert policy.lossless
    assert policy.probes == ("confidence", "importance")
