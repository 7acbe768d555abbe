"""Samples that can be learned from: what is drafted with confidence stands more often."""

import numpy as np
import pytest

from training.wisp import trace
from training.wisp.samples import TokenSamples


@pytest.fixture(scope="package")
def learnable() -> TokenSamples:
    """120 sessions of two windows with four tokens each."""
    draw = np.random.default_rng(0)
    confidence = draw.random((240, 4))
    stands = draw.random((240, 4)) < confidence**0.3
    accepted = np.where(stands.all(1), 4, stands.argmin(1))
    position = np.tile(np.arange(4), 240)
    first = np.repeat(accepted, 4)
    outcome = np.select([position < first, position == first], [trace.ACCEPTED, trace.REJECTED], trace.AFTER_REJECTION)
    flat = confidence.ravel()
    features = np.stack([flat, flat**2, -np.log(flat), draw.random(960)], 1).astype(np.float32)
    names = np.repeat(np.array([f"r{i:05d}" for i in range(120)]), 8)
    before = outcome != trace.AFTER_REJECTION
    tokens = trace.TokenTrace(names, np.repeat(np.tile([0, 1], 120), 4), position, features, outcome)
    return TokenSamples(features[before], outcome[before] == trace.ACCEPTED, names[before], tokens.windows())
