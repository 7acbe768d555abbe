"""The rows of Synera, Fig. 4 and 5b, as an exhibit reads them: `{group: {row: {metric: cell}}}`.

Synera, Fig. 4a, 4b and 5b, drawn from our own tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.synera.alignment import (
    Alignment,
    Cell,
    Drafts,
    Flags,
    Floats,
    Tokens,
    auc,
    highest,
    ratio,
    skewness,
    spearman,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


_BLUE, _ORANGE, _FAINT = "#3366cc", "#d9572b", "#9aa5b1"
_SIGMAS = 1.96


def draw(found: Alignment, table: Mapping[str, Mapping[str, Row]], folder: Path) -> None:
    """Writes hit_rate.png, confidence_cdf.png and importance_cdf.png; `table` is `rows` of the alignment."""
    folder.mkdir(exist_ok=True)
    tokens = found.tokens
    axes = _axes("confidence", "hit rate, %")
    _hit_rates(axes, table[TOKEN])
    _save(axes, folder / "hit_rate.png", "Hit rate by confidence, 95 % intervals")
    axes = _axes("confidence", "share of tokens, %")
    axes.axvline(0.8, color=_FAINT, linewidth=1)
    _cdf(axes, tokens.confidence, "all tokens", _BLUE)
    _cdf(axes, tokens.confidence[tokens.content], "content tokens", _ORANGE)
    axes.legend(fontsize=8, frameon=False)
    _save(axes, folder / "confidence_cdf.png", "CDF of confidence")
    axes = _axes("importance", "share of drafted tokens, %")
    _cdf(axes, tokens.importance[~np.isnan(tokens.importance)], "drafted tokens", _BLUE)
    _save(axes, folder / "importance_cdf.png", "CDF of importance")


def _hit_rates(axes: Axes, table: Mapping[str, Row]) -> None:
    """The bins are the table's first rows."""
    middles = [(low + high) / 2 for low, high in BINS]
    for metric, label, colour in (("top_1", "top-1", _BLUE), ("top_5", "top-5", _ORANGE)):
        cells = [(x, row[metric]) for x, row in zip(middles, table.values(), strict=False)]
        known = [(x, np.array(cell)) for x, cell in cells if isinstance(cell, list)]
        rates = [100 * float(cell.mean()) for _, cell in known]
        halves = [100 * _SIGMAS * float(cell.std()) / len(cell) ** 0.5 for _, cell in known]
        axes.errorbar([x for x, _ in known], rates, yerr=halves, color=colour, marker="o", capsize=3, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 105), xticks=EDGES)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _cdf(axes: Axes, values: Floats, label: str, colour: str) -> None:
    ordered = np.sort(values)
    shares = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    axes.step(ordered, shares, color=colour, where="post", label=label)


def _axes(x: str, y: str) -> Axes:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _save(axes: Axes, path: Path, title: str) -> None:
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        figure.savefig(path, dpi=130, metadata={"Software": None})
