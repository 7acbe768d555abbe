"""What one can tell from a model's logits about its next token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from serving.core.scores import SCORES, Scorers


@dataclass(frozen=True, slots=True)
class Statistics:
    """Per row of logits: the likeliest token, the k likeliest ones best first, and the scores asked for."""

    tokens: list[int]
    tops: list[list[int]]
    scores: dict[str, list[float]]


def check_scores(names: Sequence[str], trained: Iterable[str] = ()) -> None:
    """Raises ValueError for a score that nobody computes."""
    known = (*SCORES, *trained)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"score {unknown[0]!r} is not known; choose among {', '.join(known)}")


def needed(names: Sequence[str], trained: Scorers) -> tuple[str, ...]:
    """What to measure for these scores: trained ones are told from all the others, or from hidden states."""
    if any(name in trained and trained[name].reads == "scores" for name in names):
        return SCORES
    return tuple(name for name in names if name not in trained)


def measure(logits: torch.Tensor, names: Sequence[str] = (), k: int = 3) -> Statistics:
    """Statistics of rows of logits, of shape (rows, vocabulary); ties go to the token that argmax names.

    Computed without an (rows, vocabulary) logarithm or a second pass for the deviation. Raises ValueError for an
    unknown score.
    """
    logits = logits.float()
    values, ids = logits.topk(min(max(k, 2), logits.shape[-1]), -1)
    likeliest: list[int] = logits.argmax(-1).tolist()
    tops = [[token, *(i for i in row if i != token)][:k] for token, row in zip(likeliest, ids.tolist(), strict=True)]
    scores: dict[str, list[float]] = {}
    if names:
        probabilities = logits.softmax(-1)
        best = probabilities.gather(-1, ids[:, :2])
        scores = {name: _score(name, logits, values, probabilities, best).tolist() for name in names}
    return Statistics(likeliest, tops, scores)


def _score(
    name: str, logits: torch.Tensor, values: torch.Tensor, probabilities: torch.Tensor, best: torch.Tensor
) -> torch.Tensor:
    if name == "confidence":
        return best[:, 0]
    if name == "margin":
        return best[:, 0] - best[:, 1]
    if name == "entropy":
        mean: torch.Tensor = torch.linalg.vecdot(probabilities, logits)
        return values[:, 0] - best[:, 0].log() - mean
    if name == "logit_std":
        return _deviation(logits)
    raise ValueError(f"score {name!r} is not known; choose among {', '.join(SCORES)}")


def _deviation(logits: torch.Tensor) -> torch.Tensor:
    count, mean = logits.shape[-1], logits.mean(-1)
    squares: torch.Tensor = torch.linalg.vecdot(logits, logits)
    return ((squares - count * mean * mean) / (count - 1)).clamp_min(0).sqrt()
