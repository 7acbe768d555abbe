"""The rows of Synera, Fig. 4 and 5b, as an exhibit reads them: `{group: {row: {metric: cell}}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from itertools import pairwise

import numpy as np

from training.synera.alignment import Alignment, Drafts, Flags, Floats, Tokens
from training.synera.estimates import Cell, auc, highest, ratio, skewness, spearman

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BINS = tuple(pairwise(EDGES))
SHARES = {"tenth": 0.1, "fifth": 0.2}
TOKEN, CONTENT, DRAFTED, DRAFT, SCORE = "token", "content token", "drafted token", "draft", "score"
Row = dict[str, Cell | float]


def rows(found: Alignment) -> dict[str, dict[str, Row]]:
    """Tokens by confidence; drafted tokens, and drafts, by either score; what the scores tell of misses."""
    tokens, judged = found.tokens, only(found.tokens, ~np.isnan(found.tokens.importance))
    return {
        TOKEN: _by_confidence(tokens, found.answers),
        CONTENT: _by_confidence(only(tokens, tokens.content), found.answers),
        DRAFTED: {name: _drafted(judged, chosen, found.answers) for name, chosen in _extremes(judged).items()},
        DRAFT: {name: _draft(found.drafts, chosen, found.answers) for name, chosen in _extremes(found.drafts).items()},
        SCORE: _scores(judged, found.drafts, found.answers),
    }


def metrics(found: Alignment, table: Mapping[str, Mapping[str, Row]]) -> dict[str, float]:
    """Every cell of `rows` as `group/row/metric`; how far importance tells a cut draft, by task; counts."""
    cells = {f"{g}/{r}/{m}": cell for g, own in table.items() for r, row in own.items() for m, cell in row.items()}
    counts = {"answers": found.answers, "tokens": len(found.tokens.answer), "drafts": len(found.drafts.answer)}
    known = {name: float(np.mean(cell)) for name, cell in (cells | _by_task(found)).items() if cell is not None}
    return known | counts


def only(tokens: Tokens, chosen: Flags) -> Tokens:
    return Tokens(*(getattr(tokens, field.name)[chosen] for field in fields(Tokens)))


def _by_confidence(tokens: Tokens, answers: int) -> dict[str, Row]:
    """Five bins, the last one with its upper edge; the lower two in one; all."""
    bins = {f"confidence {low:.1f}-{high:.1f}": _within(tokens.confidence, low, high) for low, high in BINS}
    bins["confidence 0.0-0.4"] = _within(tokens.confidence, 0.0, 0.4)
    return {name: _hits(tokens, chosen, answers) for name, chosen in (bins | {"all": _all(tokens)}).items()}


def _hits(tokens: Tokens, chosen: Flags, answers: int) -> Row:
    share = partial(ratio, answer=tokens.answer, answers=answers)
    return {
        "share": share(chosen, _all(tokens)),
        "top_1": share(chosen & tokens.top_1, chosen),
        "top_5": share(chosen & tokens.top_5, chosen),
        "misses_held": share(chosen & ~tokens.top_1, ~tokens.top_1),
    }


def _drafted(tokens: Tokens, chosen: Flags, answers: int) -> Row:
    share = partial(ratio, answer=tokens.answer, answers=answers)
    return {
        "top_1": share(chosen & tokens.top_1, chosen),
        "content": share(chosen & tokens.content, chosen),
        "importance_held": share(chosen * tokens.importance, tokens.importance),
        "misses_held": share(chosen & ~tokens.top_1, ~tokens.top_1),
    }


def _draft(drafts: Drafts, chosen: Flags, answers: int) -> Row:
    share = partial(ratio, answer=drafts.answer, answers=answers)
    return {"cut": share(chosen & drafts.cut, chosen), "misses_held": share(chosen & drafts.cut, drafts.cut)}


def _extremes(found: Tokens | Drafts) -> dict[str, Flags]:
    orders = {"most important": found.importance, "least confident": -found.confidence}
    sets = {f"{name} {part}": highest(order, share) for name, order in orders.items() for part, share in SHARES.items()}
    return {"all": _all(found), **sets}


def _scores(judged: Tokens, drafts: Drafts, answers: int) -> dict[str, Row]:
    """What is doubted, or important, should be a miss, or a draft that is cut; doubt is 1 minus confidence."""
    sets: dict[str, tuple[Tokens | Drafts, Flags]] = {"tokens": (judged, ~judged.top_1), "drafts": (drafts, drafts.cut)}
    found: dict[str, Row] = {}
    for name, (scored, missed) in sets.items():
        doubt = 1 - scored.confidence
        for score, values in {"doubt": doubt, "importance": scored.importance}.items():
            found[f"{score} of {name}"] = {
                "auc": auc(values, missed, scored.answer, answers),
                "spearman": spearman(values, doubt),
                "skewness": skewness(values),
            }
    return found


def _by_task(found: Alignment) -> dict[str, Cell]:
    drafts, tasks = found.drafts, np.array(found.tasks)[found.drafts.answer]
    return {
        f"task/{task}/importance_auc_cut": auc(
            drafts.importance[tasks == task], drafts.cut[tasks == task], drafts.answer[tasks == task], found.answers
        )
        for task in dict.fromkeys(found.tasks)
    }


def _within(confidence: Floats, low: float, high: float) -> Flags:
    above = confidence >= low
    return above if high >= EDGES[-1] else above & (confidence < high)


def _all(found: Tokens | Drafts) -> Flags:
    return np.ones(len(found.answer), np.bool_)
