"""Parts of a prompt that are on their way while the cloud computes the one before (HAT, Eq. 3)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.link_monitor import DeviceMonitor
from serving.core.session import Session
from serving.messages import GenerationRequest, PathStats
from serving.policy.slots.prefill import OverlappedPrefill, overlapped_chunk_tokens

KNOWN = PathStats(mean_batch_tokens=4.0, base_s=0.008, per_token_s=1e-5, num_nodes=1, uplink_mbps=60.0)
ROW_NBYTES = 8192
TIME = st.floats(1e-6, 1.0)
NODES = st.integers(1, 8)


def session(known: PathStats | None, prompt: int = 500, limit: int = 20) -> Session:
    return Session(GenerationRequest("s", tuple(range(prompt)), limit), 0, DeviceMonitor(ROW_NBYTES, path_stats=known))


@given(TIME, TIME, TIME, st.floats(0.0, 1000.0), NODES)
def test_the_upload_of_a_chunk_takes_as_long_as_two_batches(
    upload_row_s: float, base_s: float, row_s: float, mu: float, nodes: int
) -> None:
    """Eq. 3, by substitution: X A / beta = (g(mu) + g(mu + X)) / P."""
    x = overlapped_chunk_tokens(upload_row_s, base_s, row_s, mu, nodes)
    if x is None:
        return

    def g(rows: float) -> float:
        return base_s + row_s * rows

    assert x > 0.0
    slack = 1e-9 * x * (upload_row_s + row_s)  # of the difference of two numbers that may be all but equal
    assert x * upload_row_s == pytest.approx((g(mu) + g(mu + x)) / nodes, rel=1e-6, abs=slack)


@given(TIME, TIME, TIME, st.floats(0.0, 1000.0), NODES)
def test_eq_3_has_no_root_if_the_cloud_is_slower_per_token_than_the_link(
    upload_row_s: float, base_s: float, row_s: float, mu: float, nodes: int
) -> None:
    slow = row_s / nodes >= upload_row_s
    assert (overlapped_chunk_tokens(upload_row_s, base_s, row_s, mu, nodes) is None) == slow


def test_the_chunk_size_of_eq_3_by_hand() -> None:
    """1 ms up a row; a batch takes 10 ms and 0.5 ms a row, 20 rows in the mean: X = 40 + 0.5 X for one node."""
    assert overlapped_chunk_tokens(0.001, 0.010, 0.0005, 20, 1) == pytest.approx(80.0)
    assert overlapped_chunk_tokens(0.001, 0.010, 0.0005, 20, 2) == pytest.approx(20 / 0.75)


def test_chunk_sizes_are_those_of_eq_3_rounded_up() -> None:
    """A = 8,192 bytes at 60 Mbit/s are 1.092 ms a row; g(4) = 8.04 ms."""
    x = 2 * 0.00804 / (8192 * 8 / 60e6 - 1e-5)
    assert 14 < x < 15
    assert OverlappedPrefill(initial_chunk_tokens=64, min_chunk_tokens=4).max_chunk_tokens(session(KNOWN)) == 15
    assert (
        OverlappedPrefill(initial_chunk_tokens=64, min_chunk_tokens=4).max_chunk_tokens(
            session(replace(KNOWN, num_nodes=4))
        )
        == 4
    )
    assert (
        OverlappedPrefill(initial_chunk_tokens=64, min_chunk_tokens=1).max_chunk_tokens(
            session(replace(KNOWN, num_nodes=8))
        )
        == 2
    )


@pytest.mark.parametrize("known", [None, replace(KNOWN, uplink_mbps=0.0)])
def test_chunks_have_the_initial_size_until_link_and_cloud_are_measured(known: PathStats | None) -> None:
    assert OverlappedPrefill(initial_chunk_tokens=48).max_chunk_tokens(session(known)) == 48


def test_no_chunk_is_smaller_than_the_minimum() -> None:
    assert OverlappedPrefill(min_chunk_tokens=32).max_chunk_tokens(session(KNOWN)) == 32


def test_a_prompt_is_sent_whole_if_the_cloud_is_slower_than_the_link() -> None:
    s = session(replace(KNOWN, per_token_s=0.002), prompt=500)
    assert OverlappedPrefill().max_chunk_tokens(s) >= 500
    assert (
        OverlappedPrefill().max_chunk_tokens(session(replace(KNOWN, per_token_s=0.002, num_nodes=4), prompt=500)) < 500
    )
