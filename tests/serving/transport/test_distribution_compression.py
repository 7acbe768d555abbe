"""Compression before transmission: far fewer bytes, and the same verdicts."""

import pytest

from serving.messages import SamplingParams
from tests.serving.transport.compressed_drafts import GAMMA, VOCABULARY, Pair

SESSIONS, CHUNKS = 4, 2


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(hidden=16)


def asked(pair: Pair, sampling: SamplingParams | None):
    return [q for number in range(SESSIONS) for q in pair.questions(number, CHUNKS, sampling)]


@pytest.mark.parametrize(
    "sampling",
    [None, SamplingParams(1.0, 40, 1.0, 5), SamplingParams(1.0, 0, 0.9, 5), SamplingParams(1.0, 50, 0.95, 5)],
    ids=["greedy", "top-k", "top-p", "both"],
)
def test_compressed_messages_are_99_percent_smaller_with_equal_verdicts(
    pair: Pair, sampling: SamplingParams | None
) -> None:
    found = asked(pair, sampling)
    assert all(first == second for q in found for first, second in [q.verdicts])
    assert all(q.whole.odds_nbytes == GAMMA * 2 * VOCABULARY for q in found)
    whole, compressed = sum(q.whole.nbytes for q in found), sum(q.compressed.nbytes for q in found)
    assert compressed <= 0.005 * whole
    accepted = sum(q.verdicts[0].accepted for q in found)
    assert 0 < accepted < GAMMA * len(found)  # some drafts stand and some fall


def test_uncut_distributions_shrink_by_probabilities_below_fp16(pair: Pair) -> None:
    found = asked(pair, SamplingParams(1.0, 0, 1.0, 5))
    assert all(first == second for q in found for first, second in [q.verdicts])
    assert all(0 < q.compressed.odds_nbytes <= q.whole.odds_nbytes for q in found)
    assert sum(q.compressed.nbytes for q in found) > 0.005 * sum(q.whole.nbytes for q in found)


def test_greedy_verification_needs_no_distribution(pair: Pair) -> None:
    assert {q.compressed.odds_nbytes for q in asked(pair, None)} == {0}
