"""`python -m pipeline speeds FILE ... chip=NAME`: rows of measured speeds from a benchmark's output, and their score.

The output of `llama-bench -o json` or of `vllm bench` on a machine of the user becomes rows as in
conf/hardware/measured/speeds.csv; a file of such rows (.csv) is only scored. The fit and the formats are
`training.latency`'s, named by their paths, since the pipeline imports none of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.command.named_objects import Library
from pipeline.config.arguments import config_folders, find_missing_folder, suggestion
from pipeline.config.build import load
from pipeline.config.hydra_errors import as_config_errors
from pipeline.errors import ConfigError, UserError
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_number, format_percent

WORDS: Mapping[str, str] = {
    "chip": "a chip of conf/hardware/chip",
    "mode": "its power mode, where it has several",
    "source": "who measured it, where and when",
    "licence": "under which licence the figures may be used",
    "out": "the CSV file that the rows are added to; without it they are only scored",
    "software": "what ran the model, if not llama_cpp or vllm (such as vllm_eager)",
    "architecture": "a model of conf/model/architecture, where its name or size does not say it",
    "precision": "fp16, int8 or int4, where the output does not say it (vLLM)",
    "batch": "--batch-size of `vllm bench latency`",
    "input_len": "its --input-len",
    "output_len": "its --output-len",
    "prefill": "the output of the same run with --output-len 1",
}
USAGE = "\n".join(
    [
        "usage: python -m pipeline speeds FILE [FILE ...] [WORD=VALUE ...] [--config-dir DIR]",
        *[f"  {word + '=':<{max(map(len, WORDS)) + 1}}  {meaning}" for word, meaning in WORDS.items()],
    ]
)
_NEW_CHIP = (
    "A chip of yours is one YAML file, FOLDER/hardware/chip/NAME.yaml, found with --config-dir FOLDER: for each power "
    "mode the peaks fp16_tflops (dense) and memory_gbps from its datasheet, each with its source. It needs no "
    "`software`: +experiment=clock clock.rows=[ROWS.csv] clock.chips=[NAME] fits that. docs/extending.md has a whole "
    "one under 'A chip'."
)


@dataclass(frozen=True)
class Given:
    """The words of a command line."""

    files: tuple[Path, ...]
    facts: Mapping[str, str]
    config_dir: Path | None

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "Given":
        """Raises UserError for an unknown or repeated word, and for none."""
        if problem := find_missing_folder(argv):
            raise UserError(problem)
        own = list(config_folders(argv))[:-1]
        words = list(_without_options(argv))
        files = [word for word in words if "=" not in word or Path(word).exists()]
        given = [word.split("=", 1) for word in words if word not in files]
        wrong = _wrong_word([name for name, _ in given])
        if wrong or not files:
            raise UserError(f"{wrong}{USAGE}")
        return cls(tuple(map(Path, files)), dict(given), own[0] if own else None)


def _wrong_word(names: Sequence[str]) -> str:
    """What is wrong with the first word that is unknown or repeated; empty if all are right."""
    for name in names:
        if name not in WORDS:
            return f"there is no {name!r}.{suggestion(name, list(WORDS))} "
        if names.count(name) > 1:
            return f"{name}= is given twice; give it once. "
    return ""


def _without_options(argv: Sequence[str]) -> Iterator[str]:
    words = iter(argv)
    for word in words:
        if word in ("--config-dir", "-cd"):
            next(words, "")
        elif not word.startswith(("--config-dir=", "-cd=")):
            yield word


def report(argv: Sequence[str]) -> list[ReportPart]:
    """Reads, checks, writes and scores. Raises UserError where no row is left."""
    given = Given.parse(argv)
    try:
        with as_config_errors():
            return _report(given)
    except ValueError as problem:
        raise UserError(str(problem)) from problem
    except OSError as problem:
        raise UserError(f"{problem.filename}: {problem.strerror}.") from problem


def _report(given: Given) -> list[ReportPart]:
    if not any(file.suffix == ".csv" for file in given.files):
        return _imported_parts(given)
    if given.facts or not all(file.suffix == ".csv" for file in given.files):
        raise UserError("a file of rows (.csv) says all that is known, and is only scored: give it without words.")
    library = Library.open(given.config_dir)
    rows = [row for file in given.files for row in _stored_rows(file, library)]
    if not rows:
        raise UserError(f"no row is in {', '.join(map(str, given.files))}, so there is nothing to score.")
    return _score_parts(rows)


def _stored_rows(file: Path, library: Library) -> list[Any]:
    read: Any = load("training.latency.published_speeds.read_speeds", "speeds")
    return list(read(file, library.chips, library.architectures))


def _imported_parts(given: Given) -> list[ReportPart]:
    _check_needed(given)
    out, library = _checked_out(given), Library.open(given.config_dir)
    machine = _machine(given, library)
    stored = _stored_rows(out, library) if out and out.exists() else []
    found: Any = load("training.latency.own_speeds.read_own_speeds", "speeds")(
        given.files, machine, library.architectures, stored
    )
    if not found.rows:
        raise UserError("\n".join(["no row is left; nothing was written.", *map(str, found.refusals)]))
    parts = _score_parts(found.rows)
    if found.refusals:
        reasons = tuple((one.where, one.reason) for one in found.refusals)
        parts += [f"{len(reasons)} refused", LabelledTexts(reasons)]
    if out:
        load("training.latency.published_speeds.append_speeds", "speeds")(out, found.rows)
        written = f"{len(found.rows)} rows, to {out}"
        parts.append(LabelledTexts((("written", written), ("fit with them", _fit_command(given, library, found.rows)))))
    return parts


def _check_needed(given: Given) -> None:
    needed = ["chip", *(("source", "licence") if "out" in given.facts else ())]
    if missing := [name for name in needed if name not in given.facts]:
        raise UserError(f"the output does not say {missing[0]}: {missing[0]}=, {WORDS[missing[0]]}.\n{USAGE}")


def _machine(given: Given, library: Library) -> Any:
    facts, architecture = given.facts, given.facts.get("architecture")
    try:
        chip = library.chips[facts["chip"]]
    except ConfigError as problem:
        raise ConfigError(f"{problem} {_NEW_CHIP}") from problem
    model = library.architectures[architecture] if architecture else None
    return load("training.latency.own_speeds.own_machine", "speeds")(chip, model, facts)


def _fit_command(given: Given, library: Library, rows: Sequence[Any]) -> str:
    named = {"chips": {row.chip.name for row in rows}, "architectures": {row.architecture.name for row in rows}}
    new = {key: sorted(names - library.fitted[key]) for key, names in named.items()}
    words = [f"clock.{key}=[{','.join(names)}]" for key, names in new.items() if names]
    folder = [f"--config-dir {given.config_dir}"] if given.config_dir else []
    return " ".join(["python -m pipeline +experiment=clock", f"clock.rows=[{given.facts['out']}]", *words, *folder])


def _checked_out(given: Given) -> Path | None:
    if "out" not in given.facts:
        return None
    out = Path(given.facts["out"]).expanduser()
    if out.suffix != ".csv" or out.is_dir():
        raise UserError(f"out={out}: a file whose name ends with .csv is wanted.")
    if not os.access(out.absolute().parent, os.W_OK):
        raise UserError(f"out={out}: {out.absolute().parent} is no folder that can be written to.")
    return out


def _score_parts(rows: Sequence[Any]) -> list[ReportPart]:
    scored = load("training.latency.speed_score.score_speeds", "speeds")(rows)
    phases = load("training.latency.speed_score.phase_scores", "speeds")(scored)
    cells = [(one.label, *_cells(one)) for one in scored]
    medians = [(one.kind, str(one.rows), format_percent(one.median_error), _signed(one.bias)) for one in phases]
    bases = tuple((f"from {place}", text) for place, text in enumerate(dict.fromkeys(one.basis for one in scored), 1))
    parts: list[ReportPart] = [
        "measured, and predicted with the configuration of today",
        Table(("", "measured,\nms", "predicted,\nms", "error"), tuple(cells)),
    ]
    if medians:
        parts.append(Table(("phase", "rows", "median error", "bias (median)"), tuple(medians)))
    return [*parts, LabelledTexts(bases)]


def _cells(one: Any) -> tuple[str, ...]:
    predicted_ms = None if one.predicted_s is None else 1e3 * one.predicted_s
    return format_number(1e3 * one.speed.seconds), format_number(predicted_ms), _signed(one.error)


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"
