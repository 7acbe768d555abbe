"""How well the clock predicts published speeds that it was not fitted on, by phase, processor and software."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from serving.hardware.chip import Chip
from serving.hardware.error_pools import HELD_OUT_ERROR, processor_of
from training.fitting.figures import save_figure
from training.latency.former_clock import FormerClock
from training.latency.kernel_fit import COMBINATIONS, kernel_errors
from training.latency.published_speeds import PublishedSpeed
from training.latency.speed_fit import KERNELS, Array, SpeedFit
from training.latency.stand_ins import STAND_INS, check_stand_ins

Split = Literal["source", "model", "processor"]
Key: TypeAlias = tuple[str, ...]

SPLIT_NAMES: Mapping[Split, str] = {
    "source": "another source", "model": "another model, same source", "processor": "another processor",
}  # fmt: skip
"""What was held out. A group is a chip in one mode with one software: where it has two sources, one of them; else a
model; and, apart from both, all rows of a processor."""
_NUM_FOLDS: Mapping[Split, int] = {"source": 3, "model": 4, "processor": 6}


@dataclass(frozen=True)
class HeldOut:
    """One row that was predicted by a fit without it."""

    speed: PublishedSpeed
    split: Split
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.speed.seconds - 1

    @property
    def kind(self) -> str:
        return self.speed.kind


def hold_out(
    whole: SpeedFit, speeds: Sequence[PublishedSpeed], progress: Callable[[int, int], object]
) -> list[HeldOut]:
    """Each row, predicted by fits on the other folds: once within its group, and once without its processor.

    `whole` is the fit to all of them: software without a row in a fold is not fitted again.
    """
    folds = [(split, rows) for split in SPLIT_NAMES for rows in _folds(speeds, split)]
    found: list[HeldOut] = []
    for done, (split, rows) in enumerate(folds, 1):
        held = [speeds[i] for i in sorted(rows)]
        unseen = {_origin(speed, split) for speed in held}
        fit = whole.refitted([s for s in speeds if _origin(s, split) not in unseen], {s.software for s in held})
        known = [speed for speed in held if fit.knows_software(speed.software)]
        found += [HeldOut(*pair) for pair in zip(known, [split] * len(known), fit.predict_s(known), strict=True)]
        progress(done, len(folds))
    return found


def _origin(speed: PublishedSpeed, split: Split) -> tuple[str, ...]:
    """What a row that is held out shares with rows of other modes and boards, which a fit must not have seen either:
    its processor and software in its source, and there its model.
    """
    own = (speed.silicon, speed.software, speed.source)
    return (speed.silicon,) if split == "processor" else own if split == "source" else (*own, speed.architecture.name)


def _folds(speeds: Sequence[PublishedSpeed], split: Split) -> Iterator[frozenset[int]]:
    folds: dict[int, set[int]] = defaultdict(set)
    if split == "processor":
        keys = {i: speed.silicon for i, speed in enumerate(speeds)}
        for i, fold in _ranked(keys, _NUM_FOLDS[split]):
            folds[fold].add(i)
    else:
        for rows in _grouped(speeds).values():
            sources = {i: speeds[i].source for i in rows}
            if (len(set(sources.values())) > 1) != (split == "source"):
                continue
            keys = sources if split == "source" else {i: speeds[i].architecture.name for i in rows}
            if len(set(keys.values())) > 1:
                for i, fold in _ranked(keys, _NUM_FOLDS[split]):
                    folds[fold].add(i)
    return (frozenset(rows) for rows in folds.values())


def _grouped(speeds: Sequence[PublishedSpeed]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = defaultdict(list)
    for i, speed in enumerate(speeds):
        found[speed.chip.name, speed.power_mode, speed.software].append(i)
    return found


def _ranked(keys: Mapping[int, str], count: int) -> Iterator[tuple[int, int]]:
    """Each row with its key's fold: keys in alphabetical order are dealt out."""
    ranks = {key: rank % count for rank, key in enumerate(sorted(set(keys.values())))}
    return ((i, ranks[key]) for i, key in keys.items())


Cells: TypeAlias = dict[str, Any]


def error_rows(found: Sequence[HeldOut]) -> dict[str, dict[str, Cells]]:
    """For each split: the errors by phase, by processor and software, and by power mode where a chip has several."""
    tables: dict[str, dict[str, Cells]] = {}
    for split, title in SPLIT_NAMES.items():
        own = [one for one in found if one.split == split]
        tables[title] = {kind: _errors(rows) for kind, rows in _by(own, lambda one: one.kind).items()}
    near = _within_groups(found)
    tables["by processor and software"] = {
        label: _errors(rows) for label, rows in _by(near, lambda one: f"{' '.join(one.speed.group)} {one.kind}").items()
    }
    several = [one for one in near if len(one.speed.chip.modes) > 1]
    tables["by power mode"] = {
        label: _errors(rows) for label, rows in _by(several, lambda one: f"{_board(one.speed)} {one.kind}").items()
    }
    return tables


def _board(speed: PublishedSpeed) -> str:
    return f"{speed.chip.name} {speed.power_mode}"


def before_rows(found: Sequence[HeldOut], former: FormerClock) -> dict[str, dict[str, Cells]]:
    """The errors of the former clock beside today's, on the same rows: those of chips that it knew."""
    known = [one for one in found if former.knows(one.speed) and one.speed.software != KERNELS]
    apart = {
        "before and after, held out in its group": [one for one in known if one.split != "processor"],
        "before and after, processor held out": [one for one in known if one.split == "processor"],
    }
    return {title: _before_by_kind(rows, former) for title, rows in apart.items()}


def _before_by_kind(found: Sequence[HeldOut], former: FormerClock) -> dict[str, Cells]:
    return {
        kind: _errors(rows)
        | {"before": float(np.median([abs(former.predict_s(one.speed) / one.speed.seconds - 1) for one in rows]))}
        for kind, rows in _by(found, lambda one: one.kind).items()
    }


def kernel_rows(speeds: Sequence[PublishedSpeed]) -> dict[str, Cells]:
    """The errors of linear layers alone by how computing and reading are combined; these rows are fitted to."""
    kernels = [speed for speed in speeds if speed.software == KERNELS]
    errors = {name: kernel_errors(kernels, combine) for name, combine in COMBINATIONS.items()} if kernels else {}
    sources = len({speed.source for speed in kernels})
    return {name: _error_cells(own, sources) for name, own in errors.items()}


def own_rows(found: Sequence[HeldOut], own: Sequence[PublishedSpeed]) -> dict[str, Cells]:
    """The errors of the rows that a user measured, by phase and by what was held out."""
    wanted = set(map(id, own))
    mine = [one for one in found if id(one.speed) in wanted]
    return {
        label: _errors(rows) for label, rows in _by(mine, lambda one: f"{one.kind}, {SPLIT_NAMES[one.split]}").items()
    }


def stand_in_rows(
    fit: SpeedFit, speeds: Sequence[PublishedSpeed], relatives: Sequence[PublishedSpeed]
) -> dict[str, Cells]:
    """The errors of figures that stand in for others, on the rows of processors where both were measured."""
    return {
        f"{' '.join(found.speeds[0].group)} {found.speeds[0].kind}, as on {found.stand_in}": _error_cells(
            found.predicted_s / np.array([one.seconds for one in found.speeds]) - 1,
            len({one.source for one in found.speeds}),
        )
        for found in check_stand_ins(fit, speeds, relatives)
    }


def _within_groups(found: Sequence[HeldOut]) -> list[HeldOut]:
    """The rows that a fit with others of their own chip and software predicted; without sums of kernels."""
    return [one for one in found if one.split != "processor" and one.speed.software != KERNELS]


def _by(found: Sequence[HeldOut], label: Callable[[HeldOut], str]) -> dict[str, list[HeldOut]]:
    rows: dict[str, list[HeldOut]] = defaultdict(list)
    for one in found:
        rows[label(one)].append(one)
    return dict(sorted(rows.items()))


def _errors(rows: Sequence[HeldOut]) -> Cells:
    return _error_cells(np.array([row.error for row in rows]), len({row.speed.source for row in rows}))


def _error_cells(errors: Array, sources: int) -> Cells:
    return {
        "rows": len(errors),
        "sources": sources,
        "median_error": float(np.median(np.abs(errors))),
        "p90_error": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
    }


def ordering_rows(found: Sequence[HeldOut]) -> dict[str, Cells]:
    """Of all pairs of configurations with the same model and work, the share whose faster one is predicted.

    A configuration is chip, mode, software and precision; of several measurements of one the first counts.
    """
    near = _within_groups(found)
    rows = {kind: _ordering(own) for kind, own in _by(near, lambda one: one.kind).items()}
    return {kind: cells for kind, cells in rows.items() if cells["pairs"]}


def _ordering(found: Sequence[HeldOut]) -> Cells:
    same_work: dict[tuple[Any, ...], dict[Key, HeldOut]] = defaultdict(dict)
    for one in found:
        speed = one.speed
        work = speed.architecture.name, speed.phase, speed.batch, speed.new_tokens, _context_class(speed.cached_tokens)
        place = speed.chip.name, speed.power_mode, speed.software, speed.precision
        same_work[work].setdefault(place, one)
    pairs = [pair for places in same_work.values() for pair in combinations(places.values(), 2)]
    right = [(a.speed.seconds < b.speed.seconds) == (a.predicted_s < b.predicted_s) for a, b in pairs]
    clear = [max(a.speed.seconds, b.speed.seconds) > 1.2 * min(a.speed.seconds, b.speed.seconds) for a, b in pairs]
    clearly_right = [hit for hit, is_clear in zip(right, clear, strict=True) if is_clear]
    return {
        "pairs": len(pairs),
        "faster_predicted": float(np.mean(right)) if right else None,
        "clear_pairs": len(clearly_right),
        "clear_faster_predicted": float(np.mean(clearly_right)) if clearly_right else None,
    }


def _context_class(cached_tokens: int) -> int:
    """Contexts of up to 1,024 tokens cost a decode nearly the same."""
    return 0 if cached_tokens <= 1024 else cached_tokens.bit_length()


def clock_errors(found: Sequence[HeldOut]) -> dict[str, list[float]]:
    """What `serving.hardware.clock_draw` draws from: log(measured / predicted), a median by source and processor.

    What was measured on a processor is off as its other sources are, what was not, as other processors are.
    """
    known = [one for one in found if one.speed.software != KERNELS]
    splits: Mapping[str, Split] = {"": "source", "_unmeasured": "processor"}
    return {
        f"{kind}{suffix}": [
            -float(np.median([np.log1p(one.error) for one in rows]))
            for rows in _by(
                [one for one in known if (one.split, one.kind) == (split, kind)], _source_and_group
            ).values()
        ]
        for suffix, split in splits.items()
        for kind in ("decode", "prefill")
    }


def measured_modes(speeds: Sequence[PublishedSpeed], chips: Sequence[Chip]) -> dict[str, dict[str, list[str]]]:
    """Chip -> software -> the power modes with a row; boards of one processor share theirs, as they share figures."""
    found: dict[str, dict[str, list[str]]] = {}
    for chip in sorted((one for one in chips if one.has_peaks), key=lambda one: one.name):
        own = [one for one in speeds if one.silicon == processor_of(chip.name) and one.software != KERNELS]
        by_software = _modes_by_software(own)
        found[chip.name] = {software: sorted(by_software[software]) for software in sorted(by_software)}
    return found


def _modes_by_software(speeds: Sequence[PublishedSpeed]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for one in speeds:
        found[one.software].add(one.power_mode)
    return found


def _source_and_group(one: HeldOut) -> str:
    return " ".join((one.speed.source, *one.speed.group))


HELD_OUT_COLUMNS = ("chip", "software", "kind", "rows", "median_error")


def held_out_csv(found: Sequence[HeldOut], chips: Sequence[Chip]) -> str:
    """The errors by phase of rows whose whole processor was held out, for reports (`pipeline.report.clock_errors`).

    A line for each of the chips with the processor's own rows of a software, and a line without a chip for a software
    on all processors.
    """
    apart = [one for one in found if one.split == "processor" and one.speed.software != KERNELS]
    by_group = _by(apart, lambda one: f"{','.join(one.speed.group)},{one.kind}")
    by_software = _by(apart, lambda one: f",{one.speed.software},{one.kind}")
    boards: dict[str, list[str]] = defaultdict(list)
    for chip in chips:
        boards[processor_of(chip.name)].append(chip.name)
    lines = [
        f"{board},{rest},{_held_out_cells(rows)}"
        for label, rows in by_group.items()
        for silicon, _, rest in [label.partition(",")]
        for board in boards[silicon]
    ]
    lines += [f"{label},{_held_out_cells(rows)}" for label, rows in by_software.items()]
    return "\n".join([",".join(HELD_OUT_COLUMNS), *lines]) + "\n"


def _held_out_cells(rows: Sequence[HeldOut]) -> str:
    return f"{len(rows)},{_errors(rows)['median_error']:.3f}"


def worst_rows(found: Sequence[HeldOut], count: int = 12) -> dict[str, Cells]:
    """The rows with the largest factor between predicted and measured, within their groups."""
    near = _within_groups(found)
    ranked = sorted(near, key=lambda one: -abs(np.log1p(one.error)))[:count]
    return {
        f"{rank}. {_describe(one.speed)}": {
            "measured_s": one.speed.seconds, "predicted_s": one.predicted_s, "ratio": one.error + 1,
            "source": one.speed.source,
        }
        for rank, one in enumerate(ranked, 1)
    }  # fmt: skip


def _describe(speed: PublishedSpeed) -> str:
    mode = f" {speed.mode}" if speed.mode else ""
    work = f"{speed.phase} {speed.batch} x {speed.new_tokens}"
    return f"{speed.silicon}{mode} {speed.software} {speed.architecture.name} {speed.precision} {work}"


def evidence(speeds: Sequence[PublishedSpeed], found: Sequence[HeldOut], group: tuple[str, str]) -> str:
    """One line on the rows behind a processor's figures: number, sources, batches, held-out error of decodes."""
    rows = [speed for speed in speeds if speed.group == group]
    batches, sources = sorted({row.batch for row in rows}), len({row.source for row in rows})
    span = f"batch {batches[0]}" if len(batches) == 1 else f"batches {batches[0]} to {batches[-1]}"
    own = [one for one in _within_groups(found) if one.speed.group == group and one.kind == "decode"]
    error = f", {100 * float(np.median([abs(one.error) for one in own])):.0f} % {HELD_OUT_ERROR}" if own else ""
    return f"{len(rows)} rows of {sources} source{'s' * (sources > 1)}, {span}{error}"


def software_yaml(
    fit: SpeedFit, speeds: Sequence[PublishedSpeed], found: Sequence[HeldOut], chips: Sequence[Chip]
) -> str:
    """`software` of each chip, as in its file in conf/hardware/chip."""
    import yaml

    text = {chip.name: _software_of(chip, fit, speeds, found) for chip in chips if chip.has_peaks}
    return str(yaml.safe_dump(text, sort_keys=False, width=200))


def _software_of(
    chip: Chip, fit: SpeedFit, speeds: Sequence[PublishedSpeed], found: Sequence[HeldOut]
) -> dict[str, dict[str, Any]]:
    silicon = processor_of(chip.name)
    stand_in, borrowed = STAND_INS.get(silicon, ("", ()))
    measured = {
        name: fit.efficiency(silicon, name, f"measured: fitted to {evidence(speeds, found, (silicon, name))}")
        for name in fit.software
        if fit.knows(silicon, name) and name != KERNELS
    }
    others = {
        name: fit.efficiency(stand_in, name, f"unverified: no measurement here, as on {stand_in}")
        for name in borrowed
        if name not in measured
    }
    return {
        name: {key: value for key, value in asdict(efficiency).items() if value}
        for name, efficiency in sorted((measured | others).items())
    }


def draw_scatter(found: Sequence[HeldOut], path: Path) -> None:
    """Predicted against measured seconds, one panel for each split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    kinds = sorted({one.kind for one in found})
    for column, (split, title) in enumerate(SPLIT_NAMES.items(), 1):
        axes = figure.add_subplot(1, len(SPLIT_NAMES), column)
        own = [one for one in found if one.split == split]
        for kind in kinds:
            points = [one for one in own if one.kind == kind]
            axes.scatter([p.speed.seconds for p in points], [p.predicted_s for p in points], s=9, label=kind)
        ends = _range([one.speed.seconds for one in own])
        axes.plot(ends, ends, color="#9aa5b1", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s", title=f"held out: {title}")
    save_figure(figure, path, "Published speeds, predicted by fits without them", legend_columns=len(kinds))


def _range(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (1.0, 1.0)
