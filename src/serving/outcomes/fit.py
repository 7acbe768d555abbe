"""Fits a model of acceptance to a trace, and compares the two."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from serving.core.scores import LOGIT_SCORES, NUM_TOP_CANDIDATES
from serving.learned.medusa import parents_of
from serving.outcomes.acceptance_draws import AcceptanceDraws, MatchProbabilities
from serving.outcomes.fitted import AFTER_ERROR, DRAFT_KINDS, FittedAcceptance, ScorePools
from serving.outcomes.lookup import TraceLookup
from serving.outcomes.trace import OutcomeTrace, RecordedSession, TraceTables

DRAFT_WINDOWS = range(1, 9)

DraftMatches = Sequence[bool]
"""Per position of an answer: True if the drafter's next token is the target's."""


def acceptance_rate(answers: Iterable[DraftMatches]) -> float:
    """The share of positions where the drafter is right."""
    flat = [right for answer in answers for right in answer]
    return sum(flat) / max(1, len(flat))


def accepted_lengths(answers: Iterable[DraftMatches], k: int) -> list[float]:
    """Shares of windows of `k` drafts with 0..k accepted drafts; each window begins after the last one's correction or
    bonus token. Windows cut by the end of an answer are left out.
    """
    seen: Counter[int] = Counter()
    for answer in answers:
        at = 0
        while at + k <= len(answer):
            run = next((i for i in range(k) if not answer[at + i]), k)
            seen[run] += 1
            at += run + 1
    return [seen[n] / max(1, seen.total()) for n in range(k + 1)]


def compare_acceptance(trace: Sequence[DraftMatches], model: Sequence[DraftMatches]) -> dict[str, object]:
    """Acceptance rates; per window the distributions of accepted lengths, their means and their total variation."""
    found: dict[str, object] = {"rate": {"trace": acceptance_rate(trace), "model": acceptance_rate(model)}}
    windows = {}
    for k in DRAFT_WINDOWS:
        a, b = accepted_lengths(trace, k), accepted_lengths(model, k)
        windows[str(k)] = {
            "trace": a,
            "model": b,
            "mean": {"trace": _mean(a), "model": _mean(b)},
            "total_variation": sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2,
        }
    return found | {"windows": windows}


def auc(scores: Sequence[float], matches: Sequence[bool]) -> float:
    """The probability that a right draft scores higher than a wrong one. Ties count half; 0.5 without both kinds."""
    wins, below = 0.0, 0
    for _, tied in groupby(sorted(zip(scores, matches, strict=True)), lambda pair: pair[0]):
        found = [right for _, right in tied]
        wrong = len(found) - sum(found)
        wins += sum(found) * (below + wrong / 2)
        below += wrong
    pairs = below * (len(scores) - below)
    return wins / pairs if pairs else 0.5


def _mean(shares: Sequence[float]) -> float:
    return sum(n * share for n, share in enumerate(shares))


MAX_POOL_ROWS = 4096
"""The most rows of a pool: enough for any quantile that a policy uses."""

SAMPLED_POSITIONS = 20_000
"""Positions sampled from the model to compare it with the trace."""

PoolRow = tuple[float, ...]


def fit_acceptance(trace: OutcomeTrace, seed: int) -> FittedAcceptance:
    """The fitted model. `fit_quality` compares the trace with sampled answers of the same lengths.

    Raises ValueError for a trace without an answer, or whose drafts are all right or all wrong; without a draft model
    all are right, and no policy reads their scores.
    """
    answers = [_draft_matches(session, trace.tables) for session in trace.sessions]
    probabilities, pools = _match_probabilities(answers), _score_pools(trace, answers)
    model, confidence = _sample_answers(answers, probabilities, pools, seed)
    fit_quality = compare_acceptance(answers, model) | {
        "auc": {"trace": _trace_auc(trace, answers), "model": auc(confidence, [r for a in model for r in a])}
    }
    written = [len(s.token_ids) - s.prompt_tokens for s in trace.sessions]
    lengths = tuple((s.prompt_tokens, n, n < s.max_new_tokens) for s, n in zip(trace.sessions, written, strict=True))
    made_from = trace.made_from | {"trace": trace.described, "seed": str(seed)}
    layers = (trace.device_layers, trace.cloud_layers)
    return FittedAcceptance(
        probabilities,
        pools,
        lengths,
        layers,
        made_from,
        fit_quality,
        trace.exit_rule,
        trace.medusa_tree,
        scorer_digests=trace.scorer_digests,
    )


def _draft_matches(session: RecordedSession, tables: TraceTables) -> list[bool]:
    rows = slice(session.first_row, session.first_row + session.num_positions - 1)
    found: list[bool] = (tables.drafts[rows, 0] == tables.targets[rows]).tolist()
    return found


def _match_probabilities(answers: Sequence[Sequence[bool]]) -> MatchProbabilities:
    steps = [(a, b) for answer in answers for a, b in pairwise(answer)]
    return MatchProbabilities(
        _smoothed_share([answer[0] for answer in answers if answer]),
        _smoothed_share([b for a, b in steps if a]),
        _smoothed_share([b for a, b in steps if not a]),
    )


def _smoothed_share(matches: Sequence[bool]) -> float:
    """The share of matches, with half a success and half a failure added (Jeffreys' prior): never 0 or 1."""
    return (sum(matches) + 0.5) / (len(matches) + 1)


def _score_pools(trace: OutcomeTrace, answers: Sequence[Sequence[bool]]) -> ScorePools:
    rows: list[list[PoolRow]] = [[] for _ in DRAFT_KINDS]
    for session, matches in zip(trace.sessions, answers, strict=True):
        before = True
        for i, right in enumerate(matches):
            row = session.first_row + i
            rows[2 * before + right].append(_pool_row(trace, row, 0, right))
            if not right and trace.tables.continuation_lens[row] > 1:
                rows[AFTER_ERROR].append(_pool_row(trace, row, 1, False))
            before = right
    for a, b in ((0, 2), (1, 3), (2, 0), (3, 1), (AFTER_ERROR, 0)):
        rows[a] = rows[a] or rows[b]
    if trace.drafter_is_target:
        rows = [own or rows[1] for own in rows]
    if not all(rows):
        raise ValueError("the trace's drafts are all right or all wrong; record more prompts, or use outcomes=constant")
    attention, num_whole = _attention_pool(trace)
    nodes = tuple(_thinned(_last_accepted_nodes(trace)))
    thinned = tuple(tuple(_thinned(pool)) for pool in rows)
    return ScorePools(thinned, attention, num_whole, nodes, tuple(trace.scorer_digests))


def _attention_pool(trace: OutcomeTrace) -> tuple[tuple[PoolRow, ...], tuple[int, ...]]:
    """The attention within the continuations of the text, the longest first, and how many have 1, 2, ... tokens.

    A continuation that ended early, and one of a look-ahead branch, is no draft of the whole length: zeros stand behind
    its end.
    """
    lens = trace.tables.continuation_lens
    rows = [row for one in trace.sessions for row in range(one.first_row, one.first_row + one.num_positions)]
    kept = _thinned(sorted(rows, key=lambda row: -int(lens[row])))
    num_whole = tuple(int((lens[kept] >= n).sum()) for n in range(1, trace.tables.max_draft_len + 1))
    return tuple(map(tuple, trace.tables.attention[kept].reshape(len(kept), -1).tolist())), num_whole


def _last_accepted_nodes(trace: OutcomeTrace) -> list[int]:
    """Per position before the last: the deepest candidate of its tree that is in the target's text; -1: none."""
    if not trace.medusa_tree:
        return []
    lookup, found = TraceLookup(trace.tables), []
    parents = parents_of(trace.medusa_tree)
    for session in trace.sessions:
        for at in range(session.prompt_tokens, len(session.token_ids) - 1):
            nodes = lookup.tree_verdict(session, at + 1, lookup.proposal(session, at), parents).kept_tree_nodes
            found.append(nodes[-1] if nodes else -1)
    return found


def _pool_row(trace: OutcomeTrace, row: int, offset: int, right: bool) -> PoolRow:
    tables = trace.tables
    tops = tables.top_candidates[row, offset].tolist()
    target = int(tables.targets[row])
    rank = 0 if right else tops.index(target) if offset == 0 and target in tops else NUM_TOP_CANDIDATES
    logit_scores, trained = (
        [float(tables.scores[name][row, offset]) for name in names] for names in (LOGIT_SCORES, trace.scorer_digests)
    )
    return (*logit_scores, float(rank), float(tables.exit_layers[row, offset]), *trained)


def _thinned(rows: Sequence[Any]) -> Sequence[Any]:
    """At most `MAX_POOL_ROWS` rows, evenly chosen."""
    if len(rows) <= MAX_POOL_ROWS:
        return rows
    return [rows[i * len(rows) // MAX_POOL_ROWS] for i in range(MAX_POOL_ROWS)]


def _sample_answers(
    answers: Sequence[Sequence[bool]], probabilities: MatchProbabilities, pools: ScorePools, seed: int
) -> tuple[list[list[bool]], list[float]]:
    """Sampled answers of the same lengths, repeated to reduce noise, and the confidence at each position."""
    found: list[list[bool]] = []
    confidence: list[float] = []
    repeats = 1 + SAMPLED_POSITIONS // max(1, sum(map(len, answers)))
    for number, answer in enumerate(repeats * list(answers)):
        draws = AcceptanceDraws(seed, f"goodness {number}", 0)
        sampled = [draws.num_accepted(at, 1, probabilities.thresholds) == 1 for at in range(len(answer))]
        confidence += [pools.score(draws, at, 0, int(right), "confidence") for at, right in enumerate(sampled)]
        found.append(sampled)
    return found, confidence


def _trace_auc(trace: OutcomeTrace, answers: Sequence[Sequence[bool]]) -> float:
    table = trace.tables.scores["confidence"]
    confidence = [
        float(table[session.first_row + i, 0])
        for session, answer in zip(trace.sessions, answers, strict=True)
        for i in range(len(answer))
    ]
    return auc(confidence, [right for answer in answers for right in answer])
