"""Distributions against the warpers of `transformers`, and drawing by a given number."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from serving.engines.torch.sampling import (
    decode_probs,
    distribution,
    encode_probs,
    expand_probs,
    residual,
    sample_token,
    support_size,
)
from serving.hardware.payload_size import draft_probs_nbytes
from serving.messages import SamplingParams


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 10, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.2])
def test_a_distribution_equals_that_of_transformers_generate(temperature, top_k, top_p):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)) * 3
    want = TemperatureLogitsWarper(temperature)(None, logits)
    want = TopKLogitsWarper(top_k)(None, want) if top_k else want
    want = TopPLogitsWarper(top_p)(None, want) if top_p < 1 else want
    got = distribution(logits, SamplingParams(temperature, top_k, top_p, 0))
    torch.testing.assert_close(got.float(), want.softmax(-1))


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("top_k", [0, 50, 3000])
def test_a_nucleus_beyond_the_top_candidates_is_found(sharpness, top_k):
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(2)) * sharpness
    want = TopKLogitsWarper(top_k)(None, logits) if top_k else logits
    want = TopPLogitsWarper(0.95)(None, want).softmax(-1)
    got = distribution(logits, SamplingParams(1.0, top_k, 0.95, 0))
    counts = [(got > 0).sum(-1), (want > 0).sum(-1)]
    assert (counts[0] - counts[1]).abs().max() <= 1  # sums in another order may pass 0.95 a token sooner or later
    torch.testing.assert_close(got.float(), want, atol=1e-3, rtol=1e-3)


def test_a_nucleus_is_the_smallest_set_that_reaches_the_share():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    for top_p, tokens in [
        (0.05, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.69, [1, 3]),
        (0.71, [1, 2, 3]),
        (0.95, [0, 1, 2, 3]),
    ]:
        assert distribution(logits, SamplingParams(1.0, 0, top_p, 0)).nonzero()[:, 0].tolist() == tokens


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (SamplingParams(0.0, 0, 1.0, 0), "temperature is 0.0, must be above 0"),
        (SamplingParams(float("nan"), 0, 1.0, 0), "temperature is nan"),
        (SamplingParams(1.0, -1, 1.0, 0), "top_k is -1"),
        (SamplingParams(1.0, 0, 0.0, 0), "top_p is 0.0"),
        (SamplingParams(1.0, 0, 1.1, 0), "top_p is 1.1"),
    ],
)
def test_impossible_settings_are_refused(sampling, message):
    with pytest.raises(ValueError, match=message):
        distribution(torch.zeros(1, 4), sampling)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1 - 2**-53, 3)])
def test_a_draw_inverts_the_cumulated_weights_and_skips_zeros(uniform, token):
    assert sample_token(torch.tensor([0.0, 0.5, 0.0, 1.5, 0.0]), uniform) == token


def test_drawing_from_zero_weights_is_an_error():
    with pytest.raises(ValueError, match=r"weights sum to 0\.0"):
        sample_token(torch.zeros(3), 0.5)


def test_a_decoded_distribution_is_the_encoded_one_padded_to_the_vocabulary():
    sent = encode_probs(torch.randn(50).softmax(0))
    odds = decode_probs(sent, 64)
    assert odds.shape == (64,)
    assert float(odds.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(odds[:50], sent.double() / sent.double().sum())
    assert not odds[50:].any()


SIZES = [(97, 4), (32_000, 4), (65_536, 4), (65_537, 6), (128_256, 6)]


@pytest.mark.parametrize(("vocabulary", "width"), SIZES)
@pytest.mark.parametrize("tokens", [1, 40])
def test_tokens_without_probability_are_not_encoded(vocabulary, width, tokens):
    odds = distribution(
        torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)), SamplingParams(1.0, tokens, 1.0, 0)
    )
    sent, whole = encode_probs(odds), encode_probs(odds, full=True)
    assert (tuple(sent.shape), sent.dtype, support_size(sent)) == ((tokens, width), torch.int8, tokens)
    assert (tuple(whole.shape), whole.dtype, support_size(whole)) == ((vocabulary,), torch.float16, 0)
    assert torch.equal(expand_probs(sent, vocabulary), whole)
    for larger in (vocabulary, vocabulary + 64):
        assert torch.equal(decode_probs(sent, larger), decode_probs(whole, larger))
    assert sent.nbytes == draft_probs_nbytes(tokens, vocabulary)


def test_the_last_token_of_a_vocabulary_can_be_named():
    for vocabulary, width in SIZES:
        sent = encode_probs(torch.nn.functional.one_hot(torch.tensor(vocabulary - 1), vocabulary).double())
        assert sent.view(torch.uint8).tolist() == [[*(vocabulary - 1).to_bytes(width - 2, "little"), 0x00, 0x3C]]
        assert expand_probs(sent, vocabulary).nonzero().tolist() == [[vocabulary - 1]]


def test_a_distribution_of_too_many_tokens_is_encoded_densely():
    for tokens, shape in [(49, (49, 4)), (50, (100,)), (51, (100,))]:
        odds = torch.zeros(100, dtype=torch.float64)
        odds[:tokens] = 1 / tokens
        assert tuple(encode_probs(odds).shape) == shape


def test_probabilities_that_fp16_rounds_to_zero_are_not_encoded():
    odds = torch.full((1000,), 1e-9, dtype=torch.float64)
    odds[7], odds[900] = 0.75, 0.25
    assert support_size(encode_probs(odds)) == 2


@pytest.mark.parametrize("tokens", [[], [97], [0, 65_535]])
def test_a_token_beyond_the_vocabulary_is_refused(tokens):
    entries = [[*token.to_bytes(2, "little"), 0x00, 0x3C] for token in tokens]
    sent = torch.tensor(entries, dtype=torch.uint8).reshape(-1, 4).view(torch.int8)
    with pytest.raises(ValueError, match="of a vocabulary of 97"):
        expand_probs(sent, 97)


def test_the_residual_is_the_targets_excess_over_the_draft():
    target, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    torch.testing.assert_close(residual(target, draft), torch.tensor([0.3, 0.0, 0.0]))
    torch.testing.assert_close(residual(target, target), target)
