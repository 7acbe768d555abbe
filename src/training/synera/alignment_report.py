"""Synera, Fig. 4 and 5b for our own tokens: the rows of the exhibit, `{group: {row: {metric: cell}}}`, and figures."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.fitting.cluster_statistics import (
    ClusterValues,
    Flags,
    Floats,
    clustered_auc,
    clustered_ratio,
    skewness,
    spearman,
    top_share,
)
from training.fitting.figures import save_figure
from training.synera.alignment import AlignedTokens, Alignment, VerifiedDrafts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIDENCE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
CONFIDENCE_BINS = tuple(pairwise(CONFIDENCE_EDGES))
TOP_SHARES = {"tenth": 0.1, "fifth": 0.2}
TOKEN, CONTENT, DRAFTED, DRAFT, SCORE = "token", "content token", "drafted token", "draft", "score"
MetricRow = dict[str, ClusterValues | float]


def rows(alignment: Alignment) -> dict[str, dict[str, MetricRow]]:
    """Tokens by confidence; drafted tokens and drafts by either score; how well the scores detect misses."""
    tokens, judged = alignment.tokens, select_tokens(alignment.tokens, ~np.isnan(alignment.tokens.importance))
    return {
        TOKEN: _by_confidence(tokens, alignment.num_answers),
        CONTENT: _by_confidence(select_tokens(tokens, tokens.content), alignment.num_answers),
        DRAFTED: {
            name: _drafted_token_row(judged, chosen, alignment.num_answers)
            for name, chosen in _extreme_subsets(judged).items()
        },
        DRAFT: {
            name: _draft_row(alignment.drafts, chosen, alignment.num_answers)
            for name, chosen in _extreme_subsets(alignment.drafts).items()
        },
        SCORE: _score_rows(judged, alignment.drafts, alignment.num_answers),
    }


def metrics(alignment: Alignment, table: Mapping[str, Mapping[str, MetricRow]]) -> dict[str, float]:
    """Every cell of `rows` as `group/row/metric`; the AUC of importance for rejected drafts by task; counts."""
    cells = {f"{g}/{r}/{m}": cell for g, own in table.items() for r, row in own.items() for m, cell in row.items()}
    counts = {
        "answers": alignment.num_answers,
        "tokens": len(alignment.tokens.answer),
        "drafts": len(alignment.drafts.answer),
    }
    known = {name: float(np.mean(cell)) for name, cell in (cells | _by_task(alignment)).items() if cell is not None}
    return known | counts


def select_tokens(tokens: AlignedTokens, chosen: Flags) -> AlignedTokens:
    return AlignedTokens(*(getattr(tokens, field.name)[chosen] for field in fields(AlignedTokens)))


def _by_confidence(tokens: AlignedTokens, answers: int) -> dict[str, MetricRow]:
    """Five bins, the last one with its upper edge; the lower two together; all tokens."""
    bins = {f"confidence {low:.1f}-{high:.1f}": _in_bin(tokens.confidence, low, high) for low, high in CONFIDENCE_BINS}
    bins["confidence 0.0-0.4"] = _in_bin(tokens.confidence, 0.0, 0.4)
    return {name: _hit_row(tokens, chosen, answers) for name, chosen in (bins | {"all": _all_true(tokens)}).items()}


def _hit_row(tokens: AlignedTokens, chosen: Flags, answers: int) -> MetricRow:
    share = partial(clustered_ratio, cluster=tokens.answer, num_clusters=answers)
    return {
        "share": share(chosen, _all_true(tokens)),
        "top_1": share(chosen & tokens.top_1, chosen),
        "top_5": share(chosen & tokens.top_5, chosen),
        "share_of_misses": share(chosen & ~tokens.top_1, ~tokens.top_1),
    }


def _drafted_token_row(tokens: AlignedTokens, chosen: Flags, answers: int) -> MetricRow:
    share = partial(clustered_ratio, cluster=tokens.answer, num_clusters=answers)
    return {
        "top_1": share(chosen & tokens.top_1, chosen),
        "content": share(chosen & tokens.content, chosen),
        "share_of_importance": share(chosen * tokens.importance, tokens.importance),
        "share_of_misses": share(chosen & ~tokens.top_1, ~tokens.top_1),
    }


def _draft_row(drafts: VerifiedDrafts, chosen: Flags, answers: int) -> MetricRow:
    share = partial(clustered_ratio, cluster=drafts.answer, num_clusters=answers)
    found: MetricRow = {
        "rejected_share": share(chosen & drafts.has_rejection, chosen),
        "share_of_misses": share(chosen & drafts.has_rejection, drafts.has_rejection),
    }
    if drafts.accepted is not None:
        found["acceptance_length_with_bonus"] = share(chosen * (drafts.accepted + 1.0), chosen)
    return found


def _extreme_subsets(found: AlignedTokens | VerifiedDrafts) -> dict[str, Flags]:
    orders = {"most important": found.importance, "least confident": -found.confidence}
    sets = {
        f"{name} {part}": top_share(order, share)
        for name, order in orders.items()
        for part, share in TOP_SHARES.items()
    }
    return {"all": _all_true(found), **sets}


def _score_rows(judged: AlignedTokens, drafts: VerifiedDrafts, answers: int) -> dict[str, MetricRow]:
    """AUC of doubt (1 - confidence) and importance for misses of tokens and for drafts with a rejection."""
    sets: dict[str, tuple[AlignedTokens | VerifiedDrafts, Flags]] = {
        "tokens": (judged, ~judged.top_1),
        "drafts": (drafts, drafts.has_rejection),
    }
    found: dict[str, MetricRow] = {}
    for name, (scored, missed) in sets.items():
        doubt = 1 - scored.confidence
        for score, values in {"doubt": doubt, "importance": scored.importance}.items():
            found[f"{score} of {name}"] = {
                "auc": clustered_auc(values, missed, scored.answer, answers),
                "spearman": spearman(values, doubt),
                "skewness": skewness(values),
            }
    return found | _reading_rows(drafts, answers)


def _reading_rows(drafts: VerifiedDrafts, answers: int) -> dict[str, MetricRow]:
    """AUC of every reading of importance for drafts with a rejection: of all drafts, and of the longest alone."""
    if drafts.is_full is None:
        return {}
    sets = {"drafts": _all_true(drafts), "full drafts": drafts.is_full}
    scores = {**drafts.importance_readings, "doubt": 1 - drafts.confidence}
    return {
        f"{score} of {name}": {
            "auc": clustered_auc(values[chosen], drafts.has_rejection[chosen], drafts.answer[chosen], answers),
            "spearman": spearman(values[chosen], 1 - drafts.confidence[chosen]),
            "skewness": skewness(values[chosen]),
        }
        for score, values in scores.items()
        for name, chosen in sets.items()
    }


def _by_task(found: Alignment) -> dict[str, ClusterValues]:
    drafts, tasks = found.drafts, np.array(found.tasks)[found.drafts.answer]
    return {
        f"task/{task}/importance_auc_rejected": clustered_auc(
            drafts.importance[tasks == task],
            drafts.has_rejection[tasks == task],
            drafts.answer[tasks == task],
            found.num_answers,
        )
        for task in dict.fromkeys(found.tasks)
    }


def _in_bin(confidence: Floats, low: float, high: float) -> Flags:
    above = confidence >= low
    return above if high >= CONFIDENCE_EDGES[-1] else above & (confidence < high)


def _all_true(found: AlignedTokens | VerifiedDrafts) -> Flags:
    return np.ones(len(found.answer), np.bool_)


_BLUE, _ORANGE, _GREY = "#3366cc", "#d9572b", "#9aa5b1"
_Z_95 = 1.96


def draw_figures(alignment: Alignment, table: Mapping[str, Mapping[str, MetricRow]], folder: Path) -> None:
    """Writes hit_rate.png, confidence_cdf.png and importance_cdf.png (PDF, SVG); `table` is `rows` of the alignment."""
    folder.mkdir(exist_ok=True)
    tokens = alignment.tokens
    axes = _axes("confidence", "hit rate, %")
    _hit_rates(axes, table[TOKEN])
    _save(axes, folder / "hit_rate.png", "Hit rate by confidence, 95 % intervals")
    axes = _axes("confidence", "share of tokens, %")
    axes.axvline(0.8, color=_GREY, linewidth=1)
    _cdf(axes, tokens.confidence, "all tokens", _BLUE)
    _cdf(axes, tokens.confidence[tokens.content], "content tokens", _ORANGE)
    _save(axes, folder / "confidence_cdf.png", "CDF of confidence")
    axes = _axes("importance", "share of drafted tokens, %")
    _cdf(axes, tokens.importance[~np.isnan(tokens.importance)], "drafted tokens", _BLUE)
    _save(axes, folder / "importance_cdf.png", "CDF of importance")


def _hit_rates(axes: "Axes", table: Mapping[str, MetricRow]) -> None:
    """Plots hit rates; the bins are the table's first rows."""
    middles = [(low + high) / 2 for low, high in CONFIDENCE_BINS]
    for metric, label, colour in (("top_1", "top-1", _BLUE), ("top_5", "top-5", _ORANGE)):
        cells = [(x, row[metric]) for x, row in zip(middles, table.values(), strict=False)]
        known = [(x, np.array(cell)) for x, cell in cells if isinstance(cell, list)]
        rates = [100 * float(cell.mean()) for _, cell in known]
        halves = [100 * _Z_95 * float(cell.std()) / len(cell) ** 0.5 for _, cell in known]
        axes.errorbar([x for x, _ in known], rates, yerr=halves, color=colour, marker="o", capsize=3, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 105), xticks=CONFIDENCE_EDGES)


def _cdf(axes: "Axes", values: Floats, label: str, colour: str) -> None:
    ordered = np.sort(values)
    shares = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    axes.step(ordered, shares, color=colour, where="post", label=label)


def _axes(x: str, y: str) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _save(axes: "Axes", path: Path, title: str) -> None:
    figure = axes.get_figure(root=True)
    if figure is not None:
        save_figure(figure, path, title)
