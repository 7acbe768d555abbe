"""Verdicts on drafts, from the target's choices or logits. The three rules of `Rows.rule`."""

from collections.abc import Sequence

import torch

from serving.core.keyed_random import key, luck
from serving.engines.torch.sampling import as_received, distribution, draw, kept, residual, widen
from serving.messages import Sampling, Verdict


def greedy(choices: Sequence[int], drafts: Sequence[int]) -> Verdict:
    """Accepts drafts while they are what the target would have written; `choices` has one more entry than `drafts`."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return Verdict(accepted, choices[accepted])


def tree(choices: Sequence[int], drafts: Sequence[int], parents: Sequence[int]) -> Verdict:
    """Follows the target's choices down a tree of drafts; choices[0] belongs to the root, choices[i + 1] to draft i."""
    at = -1
    path: list[int] = []
    while True:
        child = next((i for i, p in enumerate(parents) if p == at and drafts[i] == choices[at + 1]), None)
        if child is None:
            return Verdict(len(path), choices[at + 1], tuple(path))
        at = child
        path.append(child)


def sample(
    logits: torch.Tensor,
    drafts: Sequence[int],
    odds: Sequence[torch.Tensor],
    sampling: Sampling,
    session: str,
    first: int,
) -> Verdict:
    """Lossless speculative sampling: what is written is distributed as if the target had drawn it alone.

    Fast Inference from Transformers via Speculative Decoding (Leviathan et al., 2023), algorithm 1. A token x drawn
    from the draft's q stands with probability min(1, p(x) / q(x)); the first that falls is replaced by a draw from
    max(0, p - q).

    Shapes: `logits` (drafts + 1, vocabulary), `odds` one distribution per draft as `as_sent` makes it. `first` is
    the position of the first draft in the sequence, which names the luck. Raises ValueError when a distribution is
    missing.
    """
    if len(odds) != len(drafts):
        raise ValueError(
            f"session {session!r} sent {len(drafts)} drafts with {len(odds)} distributions; sampling needs one each"
        )
    width = max([logits.shape[1], *(len(one) for one in odds if not kept(one))])
    target, stream = widen(distribution(logits, sampling), width), key(sampling.seed, session)
    for i, token in enumerate(drafts):
        draft = as_received(odds[i], width)
        if luck(stream, first + i, "accept") * float(draft[token]) >= float(target[i, token]):
            correction = residual(target[i], draft)
            return Verdict(i, draw(correction, luck(stream, first + i, "residual")))
    return Verdict(len(drafts), draw(target[-1], luck(stream, first + len(drafts), "residual")))
