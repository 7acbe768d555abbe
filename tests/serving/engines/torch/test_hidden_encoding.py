"""Encoding and decoding of hidden states for a link."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engines.torch.forward import decode_hidden, encode_hidden
from serving.hardware.payload_size import HIDDEN_DTYPES, hidden_nbytes

SIZES = st.sampled_from((1e-30, 1e-6, 1.0, 300.0, 6e4))
NUMBER = pytest.mark.parametrize("number", HIDDEN_DTYPES)


@st.composite
def hidden(draw: Any, largest: Any = SIZES) -> torch.Tensor:
    """(rows, width) numbers, of which each row may be of another size."""
    rows, width, seed = draw(st.integers(1, 5)), draw(st.integers(1, 40)), draw(st.integers(0, 10**6))
    sizes = torch.tensor([draw(largest) for _ in range(rows)])
    drawn = torch.rand((rows, width), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return drawn * sizes[:, None]


def back(states: torch.Tensor, number: Any) -> torch.Tensor:
    return decode_hidden(encode_hidden(states, number), torch.empty(0))


@NUMBER
@given(states=hidden())
@settings(deadline=None)
def test_encoded_states_have_the_charged_bytes_and_decode_to_their_shape(number: Any, states: torch.Tensor) -> None:
    sent = encode_hidden(states, number)
    assert sent.nbytes == hidden_nbytes(*states.shape, number)
    assert sent.ndim == 2
    assert len(sent) == len(states)
    received = decode_hidden(sent, torch.empty(0, dtype=torch.bfloat16))
    assert received.shape == states.shape
    assert received.dtype == torch.bfloat16


@given(hidden())
@settings(deadline=None)
def test_fp32_is_exact_and_half_precision_rounds_to_nearest(states: torch.Tensor) -> None:
    assert torch.equal(back(states, "fp32"), states)
    for number, kind in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        assert torch.equal(back(states, number), states.to(kind).float())


@given(hidden())
@settings(deadline=None)
def test_int8_errs_by_at_most_half_a_step_of_its_row(states: torch.Tensor) -> None:
    step = states.abs().amax(-1, keepdim=True) / 127
    error = (back(states, "int8") - states).abs()
    assert bool((error <= step * (0.5 + 1e-4)).all())


@given(hidden(), st.integers(0, 4))
@settings(deadline=None)
def test_each_row_is_encoded_independently(states: torch.Tensor, at: int) -> None:
    """int8 has a scale a row: no row's rounding depends on its neighbours."""
    at %= len(states)
    for number in HIDDEN_DTYPES:
        assert torch.equal(encode_hidden(states, number)[at:], encode_hidden(states[at:], number))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_beyond_fp16_are_clamped(kind: torch.dtype) -> None:
    states = torch.tensor([[1e5, -1e9, 7.0]], dtype=kind)
    assert encode_hidden(states, "fp16").tolist() == [[65504.0, -65504.0, 7.0]]


def test_rows_of_zeros_survive_int8() -> None:
    assert torch.equal(back(torch.zeros(2, 3), "int8"), torch.zeros(2, 3))


@NUMBER
def test_encoded_states_share_no_storage(number: Any) -> None:
    """A batch's hidden states must not live on because one session's few rows do."""
    states = torch.ones(4, 6)
    sent = encode_hidden(states[1:2], number)
    states.zero_()
    assert sent.untyped_storage().nbytes() == hidden_nbytes(1, 6, number)
    assert torch.equal(decode_hidden(sent, torch.empty(0)), torch.ones(1, 6))
