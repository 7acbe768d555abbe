"""How far off the clock is for a run's chips where their own evidence does not say, and what of a run was not measured:
its power mode, prefills, its precision.

Most figures of a chip name their error on rows that the fit had not seen. Where a chip has too few rows for that, its
error with the whole processor held out stands in, or that of its software on all processors that were held out.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pipeline.config.arguments import conf_dir
from serving.hardware.error_pools import processor_of

_ROOFLINE = re.compile(
    r"roofline of (?P<chip>\S+) in mode (?P<mode>[^;(),]*), [^;(),]+, (?P<precision>\w+),[^;()]* (?P<software>\w+) "
    r"\((?P<evidence>(?:measured|unverified): [^()]*)\)"
)
_HAS_ERROR, _BORROWED = " % off on ", "no measurement here"
_PLURALS = {"batch": "batches"}


@dataclass(frozen=True)
class HeldOutError:
    """The median error of `rows` forwards of one kind: decode, prefill, forward of one session, or batch."""

    kind: str
    rows: int
    median_error: float

    def __str__(self) -> str:
        return f"{100 * self.median_error:.0f} % off on {self.rows} {_PLURALS.get(self.kind, f'{self.kind}s')}"


Errors = Mapping[tuple[str, str], HeldOutError]
"""(chip, software) -> its error with the processor held out; ("", software) -> on all processors held out."""


@dataclass
class MeasuredRows:
    """What the published rows of one software on one processor have in them."""

    modes: set[str] = field(default_factory=set)
    phases: set[str] = field(default_factory=set)
    precisions: set[str] = field(default_factory=set)

    def missing(self, mode: str, precision: str) -> list[str]:
        """What a run in this mode and precision needs and no row measures: other processors' rows decide it."""
        known = {
            f"of mode {mode}": mode in self.modes,
            "a prefill": "prefill" in self.phases,
            f"in {precision}": precision in self.precisions,
        }
        return [what for what, measured in known.items() if not measured]


Measured = Mapping[tuple[str, str], MeasuredRows]
"""(processor, software) -> its rows."""


def with_errors(timing: str, errors: Errors | None = None, measured: Measured | None = None) -> str:
    """The line on a run's timing sources with two additions: the error of each roofline that has none in its text, and
    a remark on the power mode, the precision and prefills where no row that was measured is of them.

    errors      by default those of conf/hardware/measured/held_out.csv
    measured    by default the rows of conf/hardware/measured/speeds.csv
    """
    known = _project_errors() if errors is None else errors
    rows = _project_rows() if measured is None else measured
    return _ROOFLINE.sub(lambda found: _with_missing(found, _with_error(found, known), rows), timing)


def _with_missing(found: re.Match[str], text: str, measured: Measured) -> str:
    rows = measured.get((processor_of(found["chip"]), found["software"]))
    if not found["evidence"].startswith("measured") or not rows:
        return text
    missing = rows.missing(found["mode"], found["precision"])
    return f"{text[:-1]}; no row is {' or '.join(missing)})" if missing else text


def _with_error(found: re.Match[str], errors: Errors) -> str:
    chip, software, evidence = found["chip"], found["software"], found["evidence"]
    own, others = errors.get((chip, software)), errors.get(("", software))
    if _HAS_ERROR in evidence or not (own or others):
        return found[0]
    if own and evidence.startswith("measured"):
        return f"{found[0][:-1]}; with this processor held out {own})"
    if others and (evidence.startswith("measured") or _BORROWED in evidence):
        return f"{found[0][:-1]}; {software} on processors held out {others})"
    return found[0]


@cache
def _project_errors() -> Errors:
    return read_errors(conf_dir() / "hardware" / "measured" / "held_out.csv")


@cache
def _project_rows() -> Measured:
    """A row without a mode is of its chip's default mode."""
    folder, found = conf_dir() / "hardware", defaultdict[tuple[str, str], MeasuredRows](MeasuredRows)
    with (folder / "measured" / "speeds.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            rows = found[processor_of(row["chip"]), row["software"]]
            rows.modes.add(row["mode"] or _default_mode(folder / "chip" / f"{row['chip']}.yaml"))
            rows.phases.add(row["phase"])
            rows.precisions.add(row["precision"])
    return found


@cache
def _default_mode(file: Path) -> str:
    line = re.search(r"^default_mode: (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return line[1] if line else ""


def read_errors(file: Path) -> dict[tuple[str, str], HeldOutError]:
    """The errors of decodes; where a chip has none, those of the kind with the most rows."""
    found: dict[tuple[str, str], HeldOutError] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            place = row["chip"], row["software"]
            one = HeldOutError(row["kind"], int(row["rows"]), float(row["median_error"]))
            found[place] = max(found.get(place, one), one, key=lambda each: (each.kind == "decode", each.rows))
    return found
