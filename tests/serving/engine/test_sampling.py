"""Distributions against the warpers of `transformers`, and drawing by a given number."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from serving.engine.sampling import as_received, as_sent, distribution, draw, residual
from serving.messages import Sampling


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 10, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.2])
def test_a_distribution_is_what_generate_would_draw_from(temperature, top_k, top_p):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)) * 3
    want = TemperatureLogitsWarper(temperature)(None, logits)
    want = TopKLogitsWarper(top_k)(None, want) if top_k else want
    want = TopPLogitsWarper(top_p)(None, want) if top_p < 1 else want
    got = distribution(logits, Sampling(temperature, top_k, top_p, 0))
    torch.testing.assert_close(got.float(), want.softmax(-1))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(0.0, 0, 1.0, 0), "temperature is 0.0, must be above 0"),
        (Sampling(float("nan"), 0, 1.0, 0), "temperature is nan"),
        (Sampling(1.0, -1, 1.0, 0), "top_k is -1"),
        (Sampling(1.0, 0, 0.0, 0), "top_p is 0.0"),
        (Sampling(1.0, 0, 1.1, 0), "top_p is 1.1"),
    ],
)
def test_impossible_settings_are_refused(sampling, message):
    with pytest.raises(ValueError, match=message):
        distribution(torch.zeros(1, 4), sampling)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1 - 2**-53, 3)])
def test_a_draw_inverts_the_cumulated_weights_and_skips_zeros(uniform, token):
    assert draw(torch.tensor([0.0, 0.5, 0.0, 1.5, 0.0]), uniform) == token


def test_there_is_nothing_to_draw_from_no_weight():
    with pytest.raises(ValueError, match=r"weights sum to 0\.0"):
        draw(torch.zeros(3), 0.5)


def test_what_is_sent_is_what_is_received_padded_to_a_larger_vocabulary():
    sent = as_sent(torch.randn(50).softmax(0))
    odds = as_received(sent, 64)
    assert odds.shape == (64,)
    assert float(odds.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(odds[:50], sent.double() / sent.double().sum())
    assert not odds[50:].any()


def test_a_residual_is_what_the_draft_left_uncovered():
    target, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    torch.testing.assert_close(residual(target, draft), torch.tensor([0.3, 0.0, 0.0]))
    torch.testing.assert_close(residual(target, target), target)
