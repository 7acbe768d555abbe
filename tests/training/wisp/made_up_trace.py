"""Windows of drafted tokens, made: what a token's four scores are worth is known."""

from pathlib import Path

import numpy as np

from training.wisp import trace
from training.wisp.samples import TokenSamples, load_samples


def write_trace(folder: Path, sessions: int = 90, rounds: int = 6, k: int = 8, seed: int = 0) -> Path:
    """A trace whose first score tells rejected tokens (an AUC of about 0.85); the others are noise."""
    chance = np.random.default_rng(seed)
    windows = sessions * rounds
    stands = chance.random((windows, k)) < 0.8
    accepted = np.where(stands.all(1), k, stands.argmin(1))
    place = np.arange(k) - accepted[:, None]
    standing = np.select([place < 0, place == 0], [trace.ACCEPTED, trace.REJECTED], trace.AFTER_REJECTION)
    features = chance.normal(size=(windows, k, 4))
    features[..., 0] += 1.5 * stands
    names = np.array([f"user {i:03d}" for i in range(sessions)])
    folder.mkdir(parents=True, exist_ok=True)
    trace.write(
        folder,
        trace.TokenTrace(
            np.repeat(names, rounds * k),
            np.tile(np.repeat(np.arange(rounds), k), sessions),
            np.tile(np.arange(k), windows),
            features.reshape(-1, 4).astype(np.float32),
            standing.reshape(-1),
        ),
        {"made": "for a test"},
    )
    return folder


def token_samples(folder: Path) -> TokenSamples:
    return load_samples(write_trace(folder))
