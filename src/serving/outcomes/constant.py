"""Outcomes from one number: every draft is right with the same probability."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from serving.core.decoding import Decoding
from serving.core.keyed_random import luck
from serving.core.scores import ACCEPT
from serving.deployment.queries import Query
from serving.messages import INF, Call, Exit
from serving.outcomes.outcomes import Opened, check_exit
from serving.outcomes.replayed import check_tree
from serving.outcomes.sampled_engine import PER_POSITION, Chances, Drawn, Rights, Scored
from serving.outcomes.stated_predictor import Stated
from serving.policy.policy import Policy
from serving.workload.workload import Asked

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class Acceptance:
    """Drafts are right with probability `rate`, independently: acceptance lengths are geometric.

    Prompts have `prompt_tokens` tokens, answers as many as the workload allows; every score is `rate`, so policies that
    decide by scores decide always alike.
    """

    rate: float = 0.7
    prompt_tokens: int = 128
    layers: int = 32
    """Of either model, as far as a placement may split them; time is the timed architectures'."""
    is_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"outcomes.rate is {self.rate}; it is the share of drafts that stand: 0 to 1")
        if self.prompt_tokens < 1:
            raise ValueError(f"outcomes.prompt_tokens is {self.prompt_tokens}; a prompt has at least 1 token")

    @property
    def described(self) -> str:
        return f"no models and no text: every draft is right with probability {self.rate:g}"

    def queries(self, asked: Sequence[Asked], decoding: Decoding, seed: int) -> list[Query]:
        return list(numbered(asked, decoding, seed, [(self.prompt_tokens, one.max_new_tokens) for one in asked]))

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> Opened:
        """Engines that draw outcomes. Raises ValueError for a policy whose drafts leave layers early."""
        check_exit(None, policy, "runtime/outcomes=constant")
        check_tree((), policy.draft.medusa)
        chances, flat = Chances(self.rate, self.rate, self.rate), Flat(self.rate, _stated(policy))
        return drawn(queries, (self.layers, self.layers), chances, flat, policy, seed)


@dataclass(frozen=True)
class Flat:
    """Scores that say nothing, but for those of a predictor with stated rates."""

    value: float
    stated: Stated | None = None

    def score(self, rights: Rights, at: int, i: int, run: int, name: str) -> float:
        if name == ACCEPT and self.stated:
            return self.stated.score(i < run, luck(rights.stream, at + i, "predicted"))
        return self.value

    def rank(self, rights: Rights, at: int, i: int, run: int) -> int:  # noqa: ARG002
        return 0 if i < run else 3

    def stem(self, rights: Rights, at: int) -> int:
        raise NotImplementedError("nobody whose target has heads is let in, see `Acceptance.open`")

    def layers(self, rights: Rights, at: int, i: int, run: int) -> int:
        raise NotImplementedError("nobody who leaves layers early is let in, see `Acceptance.open`")

    def importance(self, rights: Rights, at: int, n: int) -> tuple[float, ...]:  # noqa: ARG002
        return (self.value,) * n


def _stated(policy: Policy) -> Stated | None:
    predictor = policy.scorers.get(ACCEPT)
    if predictor is not None and not isinstance(predictor, Stated):
        raise ValueError(
            f"policy {policy.name} has a trained predictor, and runtime/outcomes=constant knows no scores for it to "
            "judge by; use runtime/outcomes=fitted or trace, or policy/draft=stated_predictor"
        )
    return predictor


def numbered(
    asked: Sequence[Asked], decoding: Decoding, seed: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[Query]:
    """Requests whose tokens are numbers; `lengths` has each one's prompt tokens and its limit."""
    sampling = decoding.sampling(seed)
    prompt = tuple(range(0, PER_POSITION * max((tokens for tokens, _ in lengths), default=0), PER_POSITION))
    for one, (tokens, limit) in zip(asked, lengths, strict=True):
        rate = one.slo.tokens_per_s if one.slo else 0.0
        ttft_s = one.slo.ttft_s if one.slo and one.slo.ttft_s else INF
        call = Call(f"r{one.index:05d}", prompt[:tokens], limit, (), sampling, rate, ttft_s)
        yield Query(call, one.prompt, one.device, one.at_s, one.think_s, one.slo)


def drawn(
    queries: Sequence[Query],
    layers: tuple[int, int],
    chances: Chances,
    scored: Scored,
    policy: Policy,
    seed: int,
    rule: Exit | None = None,
) -> Opened:
    """Engines that draw outcomes for these requests."""
    prompts = {query.call.session: len(query.call.prompt) for query in queries}
    ranked = policy.waiting.steps > 0 or policy.exchange.whole
    small = Drawn(layers[0], prompts, chances, scored, seed, ranked, rule)
    large, here = (
        Drawn(layers[1], prompts, chances, scored, seed, ranked, None, policy.draft.medusa) for _ in range(2)
    )
    notes = _notes(queries, policy)
    return Opened(small, layers[0], large, layers[1], cast("Tokenizer", Wordless()), here, lambda: notes)


def _notes(queries: Sequence[Query], policy: Policy) -> tuple[str, ...]:
    found = ["the tokens are numbers, not words: quality is not simulated"]
    cuts = {query.call.sampling.top_k for query in queries if query.call.sampling}
    if cuts and policy.draft.source == "model" and policy.verify.send and not policy.exchange.whole:
        names = " or ".join(f"{cut} tokens" if cut else "all of the vocabulary" for cut in sorted(cuts))
        found.append(
            f"a draft's distribution is sent as naming {names}: how many tokens have any probability is not simulated"
        )
    return tuple(found)


class Wordless:
    """Stands where a tokenizer would: these tokens mean nothing."""

    def decode(self, tokens: Sequence[int]) -> str:  # noqa: ARG002
        return ""
