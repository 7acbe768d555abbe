"""Outcomes from a model of acceptance that was fitted to a trace: a Markov chain, and scores resampled with it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import exp, floor, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar

from serving.core.decoding import Decoding
from serving.core.importance import NUM_PLANES, draft_importance, importance_plane
from serving.core.keyed_random import key, uniform
from serving.core.scores import LOGIT_SCORES, Scorers
from serving.deployment.queries import Query
from serving.learned.artifact import ArtifactFormat
from serving.learned.medusa import CandidateRanks
from serving.messages import EarlyExitRule
from serving.outcomes.acceptance_draws import AcceptanceDraws, MatchProbabilities
from serving.outcomes.constant import numbered_queries, sampled_engines
from serving.outcomes.lookup import attention_rows
from serving.outcomes.outcomes import OutcomeEngines, PlannedOutcomes, check_exit, check_has_text
from serving.outcomes.replayed import check_medusa_tree, check_scorers
from serving.outcomes.trace import triangle_size
from serving.policy.policy import Policy
from serving.workload.workload import WorkloadRequest


@dataclass(frozen=True)
class PromptLengths:
    """A log-normal distribution of prompt lengths, by mean and standard deviation in tokens. Raises ValueError for
    values that are not above 0.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if not getattr(self, name) > 0:
                raise ValueError(f"prompt_lengths.{name} is {getattr(self, name)}; it is a number of tokens above 0")

    def quantile(self, probability: float) -> int:
        """The length that the share `probability` (0 to below 1) of all prompts stays below; at least one token."""
        spread = log(1 + (self.std / self.mean) ** 2)
        middle = log(self.mean) - spread / 2
        return max(1, round(exp(middle + sqrt(spread) * NormalDist().inv_cdf(min(max(probability, 1e-9), 1 - 1e-9)))))


@dataclass(frozen=True)
class AnswerLengths:
    """Lengths of answers that end at each token with the same chance, or at the workload's limit; `mean` includes the
    limit. Raises ValueError for a mean below 1.
    """

    mean: float

    def __post_init__(self) -> None:
        if not self.mean >= 1:
            raise ValueError(f"answer_lengths.mean is {self.mean}; an answer has at least 1 token")

    def quantile(self, probability: float, limit: int) -> int:
        """The length that the share `probability` (0 to below 1) of all answers stays below. Raises ValueError for a
        mean that a limit so low does not allow.
        """
        if self.mean >= limit:
            raise ValueError(
                f"runtime.outcomes.answer_lengths.mean is {self.mean}, and an answer has at most {limit} tokens; lower "
                "it, or raise workload.max_new_tokens"
            )
        goes_on = self._goes_on(limit)
        return min(limit, 1 + floor(log(1 - min(probability, 1 - 1e-9)) / log(goes_on))) if goes_on else 1

    def _goes_on(self, limit: int) -> float:
        """The chance q that an answer goes on after a token, by bisection; the mean length is 1 + q + ... + q^(n-1)."""
        low, high = 0.0, 1.0
        for _ in range(60):
            q = (low + high) / 2
            low, high = (q, high) if (1 - q**limit) / (1 - q) < self.mean else (low, q)
        return low


DRAFT_KINDS = ("wrong_after_wrong", "right_after_wrong", "wrong_after_right", "right_after_right", "after_error")
AFTER_ERROR = DRAFT_KINDS.index("after_error")
RANK_COLUMN, EXIT_COLUMN = len(LOGIT_SCORES), len(LOGIT_SCORES) + 1
NUM_COLUMNS = EXIT_COLUMN + 1


@dataclass(frozen=True)
class ScorePools:
    """Recorded rows to sample from. A row of a draft has its four scores, the rank of the target's token among the
    drafter's candidates, and its exit layer; a row of attention belongs to a whole draft.

    The importance of a draft is that of another recorded draft of at least its length, sampled once per draft. This
    keeps the distribution of attention within a draft, and loses its correlation with right and wrong drafts.
    """

    rows: tuple[tuple[tuple[float, ...], ...], ...]
    attention: tuple[tuple[float, ...], ...]
    """Those of the longest drafts first."""
    num_whole_drafts: tuple[int, ...]
    """How many rows of attention are of drafts of at least 1, 2, ... tokens."""
    last_accepted_nodes: tuple[int, ...] = ()
    """Per tree that the target's heads proposed, the deepest candidate that is in the target's text; -1: none."""
    trained_scores: tuple[str, ...] = ()
    """Names of the further columns: scores computed by trained networks."""

    def with_scores(self, scorers: Scorers) -> "ScorePools":
        """The pools with a further column for each trained score that follows from the others, if they have none."""
        import numpy as np

        rows = self.rows
        computed = {
            name: scorer
            for name, scorer in scorers.items()
            if scorer.feature_kind == "scores" and name not in self.trained_scores
        }
        for scorer in computed.values():
            found = [
                scorer.probabilities(np.array([row[: len(LOGIT_SCORES)] for row in kind])).tolist() for kind in rows
            ]
            rows = tuple(
                tuple((*row, score) for row, score in zip(kind, scores, strict=True))
                for kind, scores in zip(rows, found, strict=True)
            )
        return replace(self, rows=rows, trained_scores=(*self.trained_scores, *computed))

    def score(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int, name: str) -> float:
        return self._sample_row(draws, prefix_len, i, num_accepted)[self._columns[name]]

    @cached_property
    def _columns(self) -> dict[str, int]:
        trained = {name: NUM_COLUMNS + i for i, name in enumerate(self.trained_scores)}
        return {name: i for i, name in enumerate(LOGIT_SCORES)} | trained

    def target_rank(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        return int(self._sample_row(draws, prefix_len, i, num_accepted)[RANK_COLUMN])

    def exit_layer(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        return int(self._sample_row(draws, prefix_len, i, num_accepted)[EXIT_COLUMN])

    def importance(self, draws: AcceptanceDraws, prefix_len: int, n: int, name: str) -> tuple[float, ...]:
        if not n:
            return ()
        known, num_rows = self._longest_whole(n)
        row = self.attention[int(uniform(draws.stream, prefix_len, "attention") * num_rows)]
        size = triangle_size(len(self.num_whole_drafts))
        first = importance_plane(name) * size
        values = draft_importance(attention_rows(row[first : first + size], 0, known), known, name)
        return (*values, *values[-1:] * (n - known))

    def _longest_whole(self, n: int) -> tuple[int, int]:
        """The most tokens up to `n` of which there are recorded drafts, and how many of those there are."""
        for known in range(min(n, len(self.num_whole_drafts)), 0, -1):
            if num_rows := self.num_whole_drafts[known - 1]:
                return known, num_rows
        return 1, len(self.attention)

    def last_accepted_node(self, draws: AcceptanceDraws, prefix_len: int) -> int:
        """The deepest right candidate of the tree that is proposed with token `prefix_len`; -1: none."""
        return self.last_accepted_nodes[int(uniform(draws.stream, prefix_len, "tree") * len(self.last_accepted_nodes))]

    def _sample_row(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> tuple[float, ...]:
        if i > num_accepted:
            return _sample(self.rows[AFTER_ERROR], draws, prefix_len + i, "scores behind")
        before = 1 if i else draws.previous_is_right(prefix_len)
        return _sample(self.rows[2 * before + (i < num_accepted)], draws, prefix_len + i, "scores")


def _sample(
    pool: Sequence[tuple[float, ...]], draws: AcceptanceDraws, position: int, purpose: str
) -> tuple[float, ...]:
    return pool[int(uniform(draws.stream, position, purpose) * len(pool))]


HEADER_FILE, TENSORS_FILE, ACCEPTED_NODES = "fitted.json", "pools.safetensors", "stems"
FORMAT = ArtifactFormat(
    "fitted acceptance", HEADER_FILE, TENSORS_FILE, "runtime.outcomes.path", "fit_outcomes", version=4
)


@dataclass(frozen=True)
class FittedAcceptance:
    """A model of acceptance: a draft is right with a probability that depends on the draft before. Scores and exit
    layers are resampled from the trace. Raises ValueError for missing lengths or empty pools.
    """

    probabilities: MatchProbabilities
    pools: ScorePools
    session_lengths: tuple[tuple[int, int, bool], ...]
    """Per recorded session: prompt tokens, answer tokens, and True if it ended before its limit."""
    layers: tuple[int, int]
    """Layers of the device's and of the cloud's model."""
    made_from: dict[str, str]
    fit_quality: dict[str, Any]
    """Statistics of the trace and of the model, see `serving.outcomes.fit`."""
    exit_rule: EarlyExitRule | None = None
    """The early-exit rule of the recorded drafts; None: they ran all layers."""
    medusa_tree: tuple[CandidateRanks, ...] = ()
    """The tree that the target's heads proposed; (): it has no heads."""
    prompt_lengths: PromptLengths | None = None
    """Replaces the recorded lengths of prompts."""
    full_length_answers: bool = False
    """True if every answer is as long as the workload allows."""
    answer_lengths: AnswerLengths | None = None
    """Replaces the recorded lengths of answers."""
    scorer_digests: Mapping[str, str] = field(default_factory=dict)
    """The digests of the scorers of the recorded trained scores, by name."""
    shifted_to: float | None = None
    """The acceptance that the model was shifted to (`serving.outcomes.shifted`); None: it is as it was fitted."""
    trees_shifted_to: float | None = None
    """The tokens a round that the trees of the target's heads were shifted to; None: they are as they were recorded."""
    shifted_as: str = ""
    """What it was shifted to, in words, if a published figure says it."""
    is_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.session_lengths or not all((*self.pools.rows, self.pools.attention)):
            raise ValueError("a fitted model of acceptance needs recorded lengths, and scores for every kind of draft")
        if self.answer_lengths and self.full_length_answers:
            raise ValueError("runtime.outcomes: answer_lengths and full_length_answers=true exclude each other")

    @property
    def described(self) -> str:
        rate = self.fit_quality["rate"]["trace"]
        shift = "" if self.shifted_to is None else f", shifted to {self.shifted_to:.4g}"
        shift += f" for {self.shifted_as}" if self.shifted_as else ""
        if self.trees_shifted_to is not None:
            shift += f", heads' trees to {self.trees_shifted_to:.4g} tokens a round"
        return (
            f"no models and no text: drafts are right as in a trace of {self.made_from.get('pair', 'a pair')} "
            f"(acceptance {rate:.3f}{shift}), a Markov chain of order 1 with resampled scores"
        )

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        """The requests, each with the lengths of a randomly chosen recorded session."""
        return list(numbered_queries(requests, decoding, seed, [self._request_lengths(one, seed) for one in requests]))

    def check(self, policy: Policy) -> None:
        """Raises ValueError for drafts that are read off the text."""
        check_has_text(policy, "runtime/outcomes=fitted")

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines that draw outcomes. Raises ValueError for another early-exit rule, other heads, another scorer, and
        drafts that are read off the text.
        """
        self.check(policy)
        check_exit(self.exit_rule, policy, "the trace that acceptance was fitted to")
        check_medusa_tree(self.medusa_tree, policy.draft.medusa)
        check_scorers(self.scorer_digests, policy)
        pools = self.pools.with_scores(policy.scorers)
        return sampled_engines(queries, self.layers, self.probabilities, pools, policy, seed, self.exit_rule)

    def _request_lengths(self, request: WorkloadRequest, seed: int) -> tuple[int, int]:
        stream = key(seed, request.session_name)
        at = int(uniform(stream, 0, "recorded session") * len(self.session_lengths))
        prompt, written, ended = self.session_lengths[at]
        if self.prompt_lengths:
            drawn = self.prompt_lengths.quantile(uniform(stream, 0, "prompt"))
            prompt = min(request.max_prompt_tokens, drawn)
        if self.full_length_answers:
            return prompt, request.max_new_tokens
        if self.answer_lengths:
            answer = self.answer_lengths.quantile(uniform(stream, 0, "answer"), request.longest_answer_tokens)
            return prompt, min(request.max_new_tokens, answer)
        return prompt, min(request.max_new_tokens, written) if ended else request.max_new_tokens


def save(out: Path, fitted: FittedAcceptance) -> None:
    """Writes the model into a folder."""
    import numpy as np

    pools = dict(zip(DRAFT_KINDS, fitted.pools.rows, strict=True)) | {"attention": fitted.pools.attention}
    if fitted.pools.last_accepted_nodes:
        pools[ACCEPTED_NODES] = tuple((node,) for node in fitted.pools.last_accepted_nodes)
    header = {
        "probabilities": asdict(fitted.probabilities),
        "num_whole_drafts": fitted.pools.num_whole_drafts,
        "layers": fitted.layers,
        "made_from": fitted.made_from,
        "fit_quality": fitted.fit_quality,
        "session_lengths": fitted.session_lengths,
        "exit_rule": asdict(fitted.exit_rule) if fitted.exit_rule else None,
        "medusa_tree": fitted.medusa_tree,
        "scorer_digests": fitted.scorer_digests,
    }
    FORMAT.save(out, header, {name: np.array(rows, np.float32) for name, rows in pools.items()})


def load(
    path: Path,
    prompt_lengths: PromptLengths | None = None,
    full_length_answers: bool = False,
    answer_lengths: AnswerLengths | None = None,
) -> FittedAcceptance:
    """Reads what the stage `serving.stages.fit_outcomes` wrote.

    `prompt_lengths` and `answer_lengths` replace the recorded lengths; with `full_length_answers` all answers are as
    long as the workload allows. Raises ValueError that names the file when it is missing, cut off or inconsistent.
    """
    header, arrays = FORMAT.read_header(path), FORMAT.read_weights(path)
    with FORMAT.parsing(path):
        fitted = _parsed(header, arrays)
    return replace(
        fitted,
        prompt_lengths=prompt_lengths,
        full_length_answers=full_length_answers,
        answer_lengths=answer_lengths,
    )


def planned_load(**_: object) -> PlannedOutcomes:
    """What a plan knows of the model, before it is fitted."""
    return PlannedOutcomes("runtime/outcomes=fitted", draws_trees=True, is_text=False)


def _parsed(header: dict[str, Any], arrays: dict[str, Any]) -> FittedAcceptance:
    num_whole, trained = tuple(header["num_whole_drafts"]), tuple(header["scorer_digests"])
    for name, array in arrays.items():
        width = (
            NUM_PLANES * triangle_size(len(num_whole))
            if name == "attention"
            else 1
            if name == ACCEPTED_NODES
            else NUM_COLUMNS + len(trained)
        )
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"{name} has the shape {array.shape}; its rows have {width} numbers")
    rows = {name: tuple(map(tuple, array.tolist())) for name, array in arrays.items()}
    if not all(0 <= n <= len(rows["attention"]) for n in num_whole):
        raise ValueError(f"num_whole_drafts is {num_whole}, and there are {len(rows['attention'])} rows of attention")
    nodes = tuple(int(node) for (node,) in rows.get(ACCEPTED_NODES, ()))
    return FittedAcceptance(
        MatchProbabilities(**header["probabilities"]),
        ScorePools(tuple(rows[kind] for kind in DRAFT_KINDS), rows["attention"], num_whole, nodes, trained),
        tuple((prompt, written, ended) for prompt, written, ended in header["session_lengths"]),
        (header["layers"][0], header["layers"][1]),
        header["made_from"],
        header["fit_quality"],
        EarlyExitRule(**header["exit_rule"]) if header["exit_rule"] else None,
        tuple(tuple(ranks) for ranks in header["medusa_tree"]),
        scorer_digests=header["scorer_digests"],
    )
