"""Outcomes from one number: every draft is right with the same probability."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from serving.core.decoding import Decoding
from serving.core.keyed_random import uniform
from serving.core.scores import ACCEPTANCE
from serving.deployment.queries import Query
from serving.messages import INF, EarlyExitRule, GenerationRequest
from serving.outcomes.outcomes import OutcomeEngines, check_exit
from serving.outcomes.replayed import check_medusa_tree
from serving.outcomes.sampled_engine import (
    TOKENS_PER_POSITION,
    AcceptanceDraws,
    MatchProbabilities,
    SampledEngine,
    ScoreSource,
)
from serving.outcomes.stated_predictor import StatedPredictor
from serving.policy.policy import Policy
from serving.workload.workload import WorkloadRequest

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class ConstantAcceptance:
    """Drafts are right with probability `acceptance_rate`, independently: acceptance lengths are geometric.

    Prompts have `prompt_tokens` tokens, answers as many as the workload allows; every score is `acceptance_rate`, so
    policies that decide by scores decide always alike.
    """

    acceptance_rate: float = 0.7
    prompt_tokens: int = 128
    layers: int = 32
    """Of either model, as far as a placement may split them; time is the timed architectures'."""
    is_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance_rate <= 1.0:
            raise ValueError(
                f"outcomes.acceptance_rate is {self.acceptance_rate}; it is the share of drafts that stand: 0 to 1"
            )
        if self.prompt_tokens < 1:
            raise ValueError(f"outcomes.prompt_tokens is {self.prompt_tokens}; a prompt has at least 1 token")

    @property
    def described(self) -> str:
        return f"no models and no text: every draft is right with probability {self.acceptance_rate:g}"

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        return list(
            numbered_queries(requests, decoding, seed, [(self.prompt_tokens, one.max_new_tokens) for one in requests])
        )

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines that draw outcomes. Raises ValueError for a policy whose drafts leave layers early."""
        check_exit(None, policy, "runtime/outcomes=constant")
        check_medusa_tree((), policy.draft.medusa)
        chances, flat = (
            MatchProbabilities(self.acceptance_rate, self.acceptance_rate, self.acceptance_rate),
            ConstantScores(self.acceptance_rate, _stated_predictor(policy)),
        )
        return sampled_engines(queries, (self.layers, self.layers), chances, flat, policy, seed)


@dataclass(frozen=True)
class ConstantScores:
    """Scores that say nothing, but for those of a predictor with stated rates."""

    value: float
    predictor: StatedPredictor | None = None

    def score(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int, name: str) -> float:
        if name == ACCEPTANCE and self.predictor:
            return self.predictor.score(i < num_accepted, uniform(draws.stream, prefix_len + i, "predicted"))
        return self.value

    def target_rank(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:  # noqa: ARG002
        return 0 if i < num_accepted else 3

    def last_accepted_node(self, draws: AcceptanceDraws, prefix_len: int) -> int:
        raise NotImplementedError("nobody whose target has heads is let in, see `ConstantAcceptance.open`")

    def exit_layer(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        raise NotImplementedError("nobody who leaves layers early is let in, see `ConstantAcceptance.open`")

    def importance(self, draws: AcceptanceDraws, prefix_len: int, n: int) -> tuple[float, ...]:  # noqa: ARG002
        return (self.value,) * n


def _stated_predictor(policy: Policy) -> StatedPredictor | None:
    predictor = policy.scorers.get(ACCEPTANCE)
    if predictor is not None and not isinstance(predictor, StatedPredictor):
        raise ValueError(
            f"policy {policy.name} has a trained predictor, and runtime/outcomes=constant knows no scores for it to "
            "judge by; use runtime/outcomes=fitted or trace, or policy/draft=stated_predictor"
        )
    return predictor


def numbered_queries(
    requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[Query]:
    """Requests whose tokens are numbers; `lengths` has each one's prompt tokens and its limit."""
    sampling = decoding.sampling(seed)
    prompt = tuple(
        range(0, TOKENS_PER_POSITION * max((tokens for tokens, _ in lengths), default=0), TOKENS_PER_POSITION)
    )
    for one, (tokens, limit) in zip(requests, lengths, strict=True):
        rate = one.slo.tokens_per_s if one.slo else 0.0
        ttft_s = one.slo.ttft_s if one.slo and one.slo.ttft_s else INF
        call = GenerationRequest(f"r{one.index:05d}", prompt[:tokens], limit, (), sampling, rate, ttft_s)
        yield Query(call, one.prompt, one.device, one.at_s, one.think_s, one.slo)


def sampled_engines(
    queries: Sequence[Query],
    layers: tuple[int, int],
    probabilities: MatchProbabilities,
    scores: ScoreSource,
    policy: Policy,
    seed: int,
    exit_rule: EarlyExitRule | None = None,
) -> OutcomeEngines:
    """Engines that draw outcomes for these requests."""
    prompts = {query.request.session: len(query.request.prompt) for query in queries}
    ranked = policy.lookahead.max_steps > 0 or policy.payload.full_distributions
    small = SampledEngine(layers[0], prompts, probabilities, scores, seed, ranked, exit_rule)
    large, here = (
        SampledEngine(layers[1], prompts, probabilities, scores, seed, ranked, None, policy.draft.medusa)
        for _ in range(2)
    )
    notes = _notes(queries, policy)
    return OutcomeEngines(small, layers[0], large, layers[1], cast("Tokenizer", NullTokenizer()), here, lambda: notes)


def _notes(queries: Sequence[Query], policy: Policy) -> tuple[str, ...]:
    found = ["the tokens are numbers, not words: quality is not simulated"]
    cuts = {query.request.sampling.top_k for query in queries if query.request.sampling}
    if cuts and policy.draft.source == "model" and policy.verify.sends_drafts and not policy.payload.full_distributions:
        names = " or ".join(f"{cut} tokens" if cut else "all of the vocabulary" for cut in sorted(cuts))
        found.append(
            f"a draft's distribution is sent as naming {names}: how many tokens have any probability is not simulated"
        )
    return tuple(found)


class NullTokenizer:
    """Stands where a tokenizer would: these tokens mean nothing."""

    def decode(self, tokens: Sequence[int]) -> str:  # noqa: ARG002
        return ""
