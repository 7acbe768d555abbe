"""Outcomes from stated rates: every draft is right with the same probability, and a predictor errs at given rates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, cast

from serving.core.decoding import Decoding
from serving.core.keyed_random import uniform
from serving.core.scores import ACCEPTANCE, LOGIT_SCORES, NUM_TOP_CANDIDATES
from serving.deployment.queries import Query
from serving.messages import EarlyExitRule
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION, AcceptanceDraws, MatchProbabilities, ScoreSource
from serving.outcomes.outcomes import OutcomeEngines, check_exit, check_has_text
from serving.outcomes.replayed import check_medusa_tree
from serving.outcomes.sampled_engine import SampledEngine
from serving.outcomes.shared_prompts import SharedPrompts
from serving.policy.policy import Policy
from serving.workload.workload import WorkloadRequest

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class ConstantAcceptance:
    """Drafts are right with probability `acceptance_rate`, independently: acceptance lengths are geometric.

    Prompts have `prompt_tokens` tokens, or as many as the workload allows; answers have as many as it allows. Every
    score is `acceptance_rate`, so a policy that decides by scores always decides the same.
    """

    acceptance_rate: float = 0.7
    prompt_tokens: int = 128
    layers: int = 32
    """Layers of each model, for placements that split it; times come from the timed architectures."""
    is_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance_rate <= 1.0:
            raise ValueError(
                f"outcomes.acceptance_rate is {self.acceptance_rate}; it is the share of accepted drafts: 0 to 1"
            )
        if self.prompt_tokens < 1:
            raise ValueError(f"outcomes.prompt_tokens is {self.prompt_tokens}; a prompt has at least 1 token")
        if self.layers < 1:
            raise ValueError(f"outcomes.layers is {self.layers}; a model has at least 1 layer")

    @property
    def described(self) -> str:
        return f"no models and no text: every draft is right with probability {self.acceptance_rate:g}"

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        return list(
            numbered_queries(requests, decoding, seed, [(self.prompt_tokens, one.max_new_tokens) for one in requests])
        )

    def check(self, policy: Policy) -> None:
        """Raises ValueError for drafts that are read off the text."""
        check_has_text(policy, "runtime/outcomes=constant")

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines that draw outcomes. Raises ValueError for drafts that exit early, or are read off the text."""
        self.check(policy)
        check_exit(None, policy, "runtime/outcomes=constant")
        check_medusa_tree((), policy.draft.medusa)
        rate = self.acceptance_rate
        scores = ConstantScores(rate, _stated_predictors(policy))
        return sampled_engines(
            queries, (self.layers, self.layers), MatchProbabilities(rate, rate, rate), scores, policy, seed
        )


@dataclass(frozen=True)
class ConstantScores:
    """Every score is `value`, except that of a predictor with stated rates."""

    value: float
    predictors: "Mapping[str, StatedPredictor]" = field(default_factory=dict)

    def score(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int, name: str) -> float:
        if predictor := self.predictors.get(name):
            return predictor.score(i - num_accepted, uniform(draws.stream, prefix_len + i, "predicted"))
        return self.value

    def target_rank(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:  # noqa: ARG002
        return 0 if i < num_accepted else NUM_TOP_CANDIDATES

    def last_accepted_node(self, draws: AcceptanceDraws, prefix_len: int) -> int:
        raise NotImplementedError("`ConstantAcceptance.open` refuses targets with heads")

    def exit_layer(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        raise NotImplementedError("`ConstantAcceptance.open` refuses policies with early exit")

    def importance(self, draws: AcceptanceDraws, prefix_len: int, n: int, name: str) -> tuple[float, ...]:  # noqa: ARG002
        return (self.value,) * n


@dataclass(frozen=True)
class StatedPredictor:
    """A rejection predictor known only by its rates, such as a paper's: it passes the share `recall` of right drafts,
    `false_alarm` of first wrong ones, and `suffix_false_alarm` of those behind the first wrong one (None:
    `false_alarm`, an assumption in the predictor's favour).

    WISP's MLP: 0.8011 and 0.4250 (Table 4); with it 0.48 of Qwen3-0.6B's drafts are accepted (Table 5). Its training
    and its rates leave suffix tokens out (section 4.1, appendix B).
    """

    recall: float = 0.8011
    false_alarm: float = 0.4250
    acceptance: float = 0.48
    suffix_false_alarm: float | None = field(default=None, metadata={"omitted_at_default": True})
    threshold: ClassVar[float] = 0.5
    name: ClassVar[str] = ACCEPTANCE
    feature_kind: ClassVar[Literal["scores"]] = "scores"
    num_features: ClassVar[int] = len(LOGIT_SCORES)

    def __post_init__(self) -> None:
        for name in ("recall", "false_alarm", "acceptance", "suffix_false_alarm"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"predictor: {name} is {share}; it is a share, 0 to 1")

    @property
    def digest(self) -> str:
        return repr(self)

    def score(self, behind_error: int, uniform: float) -> float:
        """1 if the draft passes, else 0. `behind_error` is how far behind the first wrong draft it is, below 0 if it is
        right; `uniform` is a draw from [0, 1).
        """
        if behind_error < 0:
            return float(uniform < self.recall)
        if behind_error > 0 and self.suffix_false_alarm is not None:
            return float(uniform < self.suffix_false_alarm)
        return float(uniform < self.false_alarm)

    def probability(self, features: Sequence[float]) -> NoReturn:  # noqa: ARG002
        raise ValueError(self._untrained_error)

    def probabilities(self, features: Any) -> NoReturn:  # noqa: ARG002
        raise ValueError(self._untrained_error)

    _untrained_error: ClassVar[str] = (
        "policy.draft.scorer is known by its rates alone and cannot score a draft; use it with "
        "runtime=simulated runtime/outcomes=constant, or train one: policy/draft=rejection_predictor"
    )


def _stated_predictors(policy: Policy) -> dict[str, StatedPredictor]:
    for name, scorer in policy.scorers.items():
        if scorer.feature_kind == "scores" and not isinstance(scorer, StatedPredictor):
            raise ValueError(
                f"policy {policy.name} has a trained score {name!r}, and runtime/outcomes=constant knows no scores for "
                "it to read; use runtime/outcomes=fitted or trace, or policy/draft=stated_predictor"
            )
    return {name: scorer for name, scorer in policy.scorers.items() if isinstance(scorer, StatedPredictor)}


def numbered_queries(
    requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[Query]:
    """Requests with numbers as tokens; `lengths` gives the prompt tokens and the token limit of each.

    All prompts begin alike, unless the workload says what they share. Prompts are cut at their requests' limits, and
    the queries say by how many tokens; too long a prompt that shares something is refused.
    """
    shared, sampling = SharedPrompts(), decoding.sampling(seed)
    prompt = tuple(
        range(0, TOKENS_PER_POSITION * max((tokens for tokens, _ in lengths), default=0), TOKENS_PER_POSITION)
    )
    for one, (tokens, limit) in zip(requests, lengths, strict=True):
        num_cut = 0 if one.sharing else max(0, tokens - one.max_prompt_tokens)
        own = shared.prompt(one, one.sharing, tokens, limit) if one.sharing else prompt[: tokens - num_cut]
        yield Query.of(one, own, limit, (), sampling, num_cut=num_cut)


def sampled_engines(
    queries: Sequence[Query],
    layers: tuple[int, int],
    probabilities: MatchProbabilities,
    scores: ScoreSource,
    policy: Policy,
    seed: int,
    exit_rule: EarlyExitRule | None = None,
) -> OutcomeEngines:
    """Engines of both models that draw outcomes for these requests; `layers` are the device's and the cloud's."""
    prompts = {query.request.session: len(query.request.prompt) for query in queries}
    candidates = policy.lookahead.max_steps > 0 or policy.payload.full_distributions
    device = SampledEngine(layers[0], prompts, probabilities, scores, seed, candidates, exit_rule)
    cloud, device_target = (
        SampledEngine(layers[1], prompts, probabilities, scores, seed, candidates, None, policy.draft.medusa)
        for _ in range(2)
    )
    tokenizer, notes = cast("Tokenizer", NullTokenizer()), _notes(queries, policy)
    return OutcomeEngines(device, layers[0], cloud, layers[1], tokenizer, device_target, lambda: notes)


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
    """A tokenizer of tokens without text."""

    def decode(self, tokens: Sequence[int]) -> str:  # noqa: ARG002
        return ""
