"""An export is run beside torch before anybody relies on it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from serving.engines.onnx.header import Header
from serving.engines.onnx.session import Ran, Session
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot

LIMIT = 1e-3
"""Of the largest difference between a logit or a number of a hidden state and torch's."""
FEEDS = ((1, 1, 1, 5), (24, 1, 1, 1, 3), (9, 12, 1, 4))
"""Of each sequence: how many tokens go in at once."""


def check(model: Model, header: Header, folder: Path) -> Header:
    """Saves the header, and the header as it is now known to be: with what was found beside torch.

    Raises ValueError where a graph in fp32 differs from torch by more than 1e-3; in int8 it may, and what is told is
    how often both choose the same token.
    """
    header.save(folder)
    found = compare(model, Session(folder))
    worst = max(found["logits"], found["hidden"])
    if not header.int8 and not worst <= LIMIT:
        raise ValueError(
            f"{header.made_from} (architecture {header.architecture!r}): the exported graph differs from torch by "
            f"{worst:.2g} (logits {found['logits']:.2g}, hidden states {found['hidden']:.2g}), and {LIMIT:g} is "
            "allowed; serve it with model.device.backend=torch"
        )
    header = replace(header, checked=found)
    header.save(folder)
    return header


def compare(model: Model, session: Session, seed: int = 0) -> dict[str, float]:
    """Largest differences of logits and hidden states over all rows of a few random texts, fed in pieces, and the share
    of rows whose likeliest token is the same.
    """
    pairs = [pair for feeds in FEEDS for pair in _both(model, session, feeds, seed)]
    differing = {
        "logits": max(_largest(ours.logits, logits) for ours, logits, _ in pairs),
        "hidden": max(_largest(ours.hidden, hidden) for ours, _, hidden in pairs),
    }
    same = [(ours.logits.argmax(-1) == logits.argmax(-1)).tolist() for ours, logits, _ in pairs]
    agreeing = [one for rows in same for one in rows]
    return {**differing, "greedy": sum(agreeing) / len(agreeing), "rows": float(len(agreeing))}


def _largest(ours: np.ndarray, torchs: np.ndarray) -> float:
    return float(np.abs(ours - torchs).max())


@torch.inference_mode()
def _both(
    model: Model, session: Session, feeds: tuple[int, ...], seed: int
) -> Iterator[tuple[Ran, np.ndarray, np.ndarray]]:
    """Of each feed what the graph says of all its rows, and torch's logits and hidden states."""
    stack, slot, past = Stack(model, model.vocabulary), Slot(model, 0, len(model.layers)), session.empty()
    generator = torch.Generator().manual_seed(seed)
    for length in feeds:
        tokens = torch.randint(model.vocabulary, (length,), generator=generator).tolist()
        ran = session.run(tokens, range(length), past)
        past = ran.present
        hidden = stack.run(stack.embed(tokens), [Lot(slot, length)], 0, len(model.layers))
        normed = stack.normed(hidden)
        yield ran, stack.read_off(normed).numpy(), normed.numpy()
