"""What is computed from logits: distributions, samples, verdicts (`SequenceSlice.rule`) and scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from serving.core.draft_tree import accept_greedily, children_of
from serving.core.keyed_random import key, uniform
from serving.core.scores import LOGIT_SCORES, NUM_TOP_CANDIDATES, Scorers
from serving.hardware.payload_size import draft_probs_nbytes, prob_entry_nbytes
from serving.messages import DraftParents, SamplingParams, Verdict

_NUCLEUS_CANDIDATES = 1024


def distribution(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
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


def _check(sampling: SamplingParams) -> None:
    if not sampling.temperature > 0:
        raise ValueError(
            f"temperature is {sampling.temperature}, must be above 0; for greedy decoding give no sampling"
        )
    if sampling.top_k < 0:
        raise ValueError(f"top_k is {sampling.top_k}, must be 0 (all tokens) or more")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p is {sampling.top_p}, must be above 0 and at most 1 (all tokens)")


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the smallest set of likeliest tokens whose probability reaches `top_p`.

    Tries the likeliest few first: sorting a vocabulary of 32,000 takes longer than all the rest.
    """
    odds = logits.softmax(-1)
    best, order = odds.topk(min(_NUCLEUS_CANDIDATES, odds.shape[-1]), -1)
    if float(best.double().sum(-1).min()) < top_p:
        best, order = odds.sort(-1, descending=True)
    before = best.double().cumsum(-1) - best
    chosen = logits.gather(-1, order).masked_fill(before >= top_p, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, order, chosen)


def encode_probs(probabilities: torch.Tensor, full: bool = False) -> torch.Tensor:
    """The form in which a draft's distribution, of shape (vocabulary,), crosses a link: rounded to fp16.

    Drafts are drawn from this rounded form, so that the verifier knows exactly what they were drawn from. What has no
    probability is left out where that makes it smaller (Synera, section 4.2), unless the `full` is wanted: then bytes
    of shape (tokens named, 4 or 6) hold each token's number, ascending, and its probability, in little endian.
    """
    rounded = probabilities.to(torch.float16)
    tokens = rounded.nonzero()[:, 0]
    vocabulary = len(rounded)
    if full or draft_probs_nbytes(len(tokens), vocabulary) == draft_probs_nbytes(0, vocabulary):
        return rounded
    halves = prob_entry_nbytes(vocabulary) // 2
    numbers = tokens.int()[:, None].view(torch.int16)[:, : halves - 1]
    return torch.cat([numbers, rounded[tokens].view(torch.int16)[:, None]], 1).view(torch.int8)


def support_size(encoded: torch.Tensor) -> int:
    """How many tokens an encoded distribution lists; 0: all."""
    return len(encoded) if encoded.dtype == torch.int8 else 0


def decode_probs(encoded: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The fp64 distribution that `encode_probs` encoded, padded with zeros to `vocab_size` tokens.

    Bit for bit the same for a full and a sparse encoding. Raises ValueError for a token beyond the vocabulary.
    """
    probs = pad_vocab(expand_probs(encoded, vocab_size), vocab_size).double()
    return probs / probs.sum()


def expand_probs(encoded: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The fp16 probabilities that `encode_probs` encoded; `vocab_size` of them if the encoding is sparse.

    Raises ValueError for a token beyond the vocabulary.
    """
    if encoded.dtype != torch.int8:
        return encoded
    tokens, probs = _sparse_entries(encoded)
    if not len(tokens) or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        named = f"tokens {int(tokens.min())} to {int(tokens.max())}" if len(tokens) else "no token"
        raise ValueError(f"a distribution names {named} of a vocabulary of {vocab_size}")
    return torch.zeros(vocab_size, dtype=torch.float16, device=encoded.device).index_put_((tokens,), probs)


def _sparse_entries(encoded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token ids of a sparse encoding of shape (tokens, 4 or 6), and their fp16 probabilities."""
    halves = encoded.view(torch.int16)
    tokens = halves[:, 0].long() & 0xFFFF
    if halves.shape[1] == 3:
        tokens += halves[:, 1].long() << 16
    return tokens, halves[:, -1].contiguous().view(torch.float16)


def pad_vocab(probabilities: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Appends tokens of probability zero: the models of a pair may pad their vocabularies differently."""
    missing = vocab_size - probabilities.shape[-1]
    return torch.nn.functional.pad(probabilities, (0, missing)) if missing > 0 else probabilities


def sample_token(weights: torch.Tensor, uniform: float) -> int:
    """The token at which the cumulated `weights`, of shape (vocabulary,), pass `uniform` of their sum.

    `uniform` is in [0, 1). A token of weight zero is never drawn. Raises ValueError if all weights are zero.
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
    from the target itself, which is not lossless. Where rounding leaves nothing, the two are equal, and
    the target is returned.
    """
    rest = (target - draft).clamp_min(0)
    return rest if float(rest.sum()) > 0 else target


def verify_greedy(argmax_tokens: Sequence[int], drafts: Sequence[int], parents: DraftParents = None) -> Verdict:
    """Accepts the longest path of drafts that the target chooses: argmax_tokens[0] is its token before all drafts,
    argmax_tokens[i + 1] its token after draft i.
    """
    return accept_greedily(drafts, parents, lambda path: argmax_tokens[path[-1] + 1 if path else 0])


def verify_sampled(
    logits: torch.Tensor,
    drafts: Sequence[int],
    draft_probs: Sequence[torch.Tensor],
    sampling: SamplingParams,
    session: str,
    first_position: int,
    parents: DraftParents = None,
) -> Verdict:
    """Lossless speculative sampling: the text is distributed as if the target had drawn it alone.

    Fast Inference from Transformers via Speculative Decoding (Leviathan et al., 2023), algorithm 1. A token x drawn
    from the draft's q is accepted with probability min(1, p(x) / q(x)); the first rejected one is replaced by a draw
    from max(0, p - q). In a tree, the next sibling is tried against what is left: p is max(0, p - q), normalised, and
    q lacks the rejected token, since siblings are drawn without replacement (SpecInfer, Miao et al., 2024, section
    4.3).

    Shapes: `logits` (drafts + 1, vocabulary), `draft_probs` one per draft, that of its parent's children, encoded by
    `encode_probs`, or none at all: drafts that nothing was drawn for have probability 1. `first_position` is the first
    draft's position in the sequence, which keys the random numbers. Raises ValueError if a distribution is missing.
    """
    if draft_probs and len(draft_probs) != len(drafts):
        raise ValueError(
            f"session {session!r} sent {len(drafts)} drafts with {len(draft_probs)} distributions; sampling needs one "
            "each"
        )
    width = max([logits.shape[1], *(len(one) for one in draft_probs if not support_size(one))])
    target, stream = pad_vocab(distribution(logits, sampling), width), key(sampling.seed, session)
    children = children_of(range(-1, len(drafts) - 1) if parents is None else parents)
    path: list[int] = []
    while True:
        node, position = path[-1] if path else -1, first_position + len(path)
        own = children.get(node, [])
        draws = [decode_probs(draft_probs[i], width) if draft_probs else _certain(drafts[i], width) for i in own]
        chances = [uniform(stream, position, f"accept {i}" if i else "accept") for i in range(len(own))]
        accepted, rest = _first_accepted(target[node + 1], [drafts[i] for i in own], draws, chances)
        if accepted is None:
            token = sample_token(rest, uniform(stream, position, "residual"))
            return Verdict(len(path), token, None if parents is None else tuple(path))
        path.append(own[accepted])


def _first_accepted(
    target: torch.Tensor, siblings: Sequence[int], draws: Sequence[torch.Tensor], chances: Sequence[float]
) -> tuple[int | None, torch.Tensor]:
    """Which of several siblings is accepted, and the weights of the target's own token if none is.

    `draws` are the distributions that they were drawn from, as if each were the first; all have shape (vocabulary,).
    """
    rest, mass = target, 1.0
    for i, (token, draft) in enumerate(zip(siblings, draws, strict=True)):
        if i:
            draft = draft.index_fill(0, torch.tensor(siblings[:i]), 0.0)
            draft = draft * (mass / float(draft.sum()))
        if chances[i] * float(draft[token]) < float(rest[token]):
            return i, rest
        rest = residual(rest, draft)
        mass = float(rest.sum())
    return None, rest


def _certain(token: int, width: int) -> torch.Tensor:
    """(width): all probability on one token."""
    return torch.zeros(width, dtype=torch.float64).index_fill_(0, torch.tensor([token]), 1.0)


@dataclass(frozen=True, slots=True)
class LogitStats:
    """Per row of logits: the likeliest token, the k likeliest (best first), and the requested scores."""

    tokens: list[int]
    top_candidates: list[list[int]]
    scores: dict[str, list[float]]


def check_scores(names: Sequence[str], trained: Iterable[str] = ()) -> None:
    """Raises ValueError for a score that is neither computed from logits nor trained."""
    known = (*LOGIT_SCORES, *trained)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"score {unknown[0]!r} is not known; choose among {', '.join(known)}")


def required_scores(names: Sequence[str], scorers: Scorers) -> tuple[str, ...]:
    """The logit scores that these scores need: a trained one reads all of them, or hidden states."""
    if any(name in scorers and scorers[name].feature_kind == "scores" for name in names):
        return LOGIT_SCORES
    return tuple(name for name in names if name not in scorers)


def compute_logit_stats(logits: torch.Tensor, names: Sequence[str] = (), k: int = NUM_TOP_CANDIDATES) -> LogitStats:
    """Statistics of logits of shape (rows, vocabulary); ties go to the token of argmax.

    Needs no (rows, vocabulary) logarithm and no second pass for the deviation. Raises ValueError for an unknown score.
    """
    logits = logits.float()
    values, ids = logits.topk(min(max(k, 2), logits.shape[-1]), -1)
    likeliest: list[int] = logits.argmax(-1).tolist()
    candidates = [
        [token, *(i for i in row if i != token)][:k] for token, row in zip(likeliest, ids.tolist(), strict=True)
    ]
    scores: dict[str, list[float]] = {}
    if names:
        probabilities = logits.softmax(-1)
        best = probabilities.gather(-1, ids[:, :2])
        scores = {name: _score(name, logits, values, probabilities, best).tolist() for name in names}
    return LogitStats(likeliest, candidates, scores)


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
