"""Drawing tokens from logits by named luck, and the distribution that a draft is judged against."""

import torch

from serving.messages import Sampling


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities after temperature, then top-k, then top-p (in that order, as `transformers` does).

    Shapes: (..., vocabulary) in and out; computed in fp32, returned in fp64. `top_k` 0 and `top_p` 1 leave all tokens.
    Raises ValueError for a temperature that is not positive, or limits that leave no token.
    """
    _check(sampling)
    logits = logits.float() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        worst = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < worst, float("-inf"))
    if sampling.top_p < 1:
        logits = _nucleus(logits, sampling.top_p)
    return logits.softmax(-1, dtype=torch.float64)


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0:
        raise ValueError(
            f"temperature is {sampling.temperature}, must be above 0; for greedy decoding give no sampling"
        )
    if sampling.top_k < 0:
        raise ValueError(f"top_k is {sampling.top_k}, must be 0 (all tokens) or more")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p is {sampling.top_p}, must be above 0 and at most 1 (all tokens)")


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the smallest set of likeliest tokens whose probability reaches `top_p`."""
    ordered, order = logits.sort(-1)
    dropped = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    dropped[..., -1] = False
    return logits.masked_fill(dropped.scatter(-1, order, dropped), float("-inf"))


def as_sent(probabilities: torch.Tensor) -> torch.Tensor:
    """The fp16 form in which a draft's distribution crosses a link.

    Drafts are drawn from this rounded form, so that the verifier knows exactly what they were drawn from.
    """
    return probabilities.to(torch.float16)


def as_received(sent: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The distribution, in fp64, that `as_sent` stands for, padded with zeros to `vocabulary` tokens."""
    odds = sent.double()
    return widen(odds / odds.sum(), vocabulary)


def widen(probabilities: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Adds tokens of probability zero at the end, because the models of a pair may pad their vocabularies
    differently."""
    missing = vocabulary - probabilities.shape[-1]
    return torch.nn.functional.pad(probabilities, (0, missing)) if missing > 0 else probabilities


def draw(weights: torch.Tensor, uniform: float) -> int:
    """The token at which the cumulated weights pass `uniform`, of [0, 1); they need not sum to one.

    Shape (vocabulary,). A token of weight zero is never drawn. Raises ValueError when all weights are zero.
    """
    cumulated = weights.double().cumsum(0)
    total = float(cumulated[-1])
    if not total > 0:
        raise ValueError(f"weights sum to {total}, so there is no token to draw; at least one must be positive")
    token = int(torch.searchsorted(cumulated, uniform * total, right=True))
    return token if token < len(weights) else int(weights.nonzero()[-1])


def residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Weights of the correction after a rejection: max(0, target - draft), not normalised.

    Fast Inference from Transformers via Speculative Decoding (Leviathan et al., 2023), section 2.3. WISP's Eq. 3 draws
    from the target itself, which is not lossless. Where rounding leaves nothing, the two are equal and the target
    serves.
    """
    rest = (target - draft).clamp_min(0)
    return rest if float(rest.sum()) > 0 else target
