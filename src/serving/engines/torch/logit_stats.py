"""What one can tell from a model's logits about its next token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from serving.core.scores import LOGIT_SCORES, Scorers


@dataclass(frozen=True, slots=True)
class LogitStats:
    """Per row of logits: the likeliest token, the k likeliest ones best first, and the scores asked for."""

    tokens: list[int]
    top_candidates: list[list[int]]
    scores: dict[str, list[float]]


def check_scores(names: Sequence[str], trained: Iterable[str] = ()) -> None:
    """Raises ValueError for a score that nobody computes."""
    known = (*LOGIT_SCORES, *trained)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"score {unknown[0]!r} is not known; choose among {', '.join(known)}")


def required_scores(names: Sequence[str], scorers: Scorers) -> tuple[str, ...]:
    """What to measure for these scores: trained ones are told from all the others, or from hidden states."""
    if any(name in scorers and scorers[name].feature_kind == "scores" for name in names):
        return LOGIT_SCORES
    return tuple(name for name in names if name not in scorers)


def compute_logit_stats(logits: torch.Tensor, names: Sequence[str] = (), k: int = 3) -> LogitStats:
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
    return LogitStats(likeliest, tops, scores)


def _score(
    name: str, logits: torch.Tensor, values: torch.Tensor, probabilities: torch.Tensor, top_probabilities: torch.Tensor
) -> torch.Tensor:
    if name == "confidence":
        return top_probabilities[:, 0]
    if name == "margin":
        return top_probabilities[:, 0] - top_probabilities[:, 1]
    if name == "entropy":
        mean: torch.Tensor = torch.linalg.vecdot(probabilities, logits)
        return values[:, 0] - top_probabilities[:, 0].log() - mean
    if name == "logit_std":
        return _logit_std(logits)
    raise ValueError(f"score {name!r} is not known; choose among {', '.join(LOGIT_SCORES)}")


def _logit_std(logits: torch.Tensor) -> torch.Tensor:
    count, mean = logits.shape[-1], logits.mean(-1)
    squares: torch.Tensor = torch.linalg.vecdot(logits, logits)
    return ((squares - count * mean * mean) / (count - 1)).clamp_min(0).sqrt()
