"""How far off the clock is for a run's chips where their own evidence does not say, and power modes without a row.

Most figures of a chip name their error on rows that the fit had not seen. Where a chip has too few rows for that, its
error with the whole processor held out stands in, or that of its software on all processors that were held out.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.config.arguments import conf_dir
from serving.hardware.error_pools import processor_of

_ROOFLINE = re.compile(
    r"roofline of (?P<chip>\S+) in mode (?P<mode>[^;(),]*),[^;()]* (?P<software>\w+) "
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


Modes = Mapping[tuple[str, str], frozenset[str]]
"""(processor, software) -> the power modes that were measured."""


def with_errors(timing: str, errors: Errors | None = None, modes: Modes | None = None) -> str:
    """The line on a run's timing sources with two additions: the error of each roofline that has none in its text, and
    a remark on each power mode without a measured row.

    errors    by default those of conf/hardware/measured/held_out.csv
    modes     by default those of conf/hardware/measured/speeds.csv
    """
    known = _project_errors() if errors is None else errors
    measured = _project_modes() if modes is None else modes
    return _ROOFLINE.sub(lambda found: _with_mode(found, _with_error(found, known), measured), timing)


def _with_mode(found: re.Match[str], text: str, measured: Modes) -> str:
    modes = measured.get((processor_of(found["chip"]), found["software"]), frozenset())
    if not found["evidence"].startswith("measured") or not modes or found["mode"] in modes:
        return text
    return f"{text[:-1]}; no row is of mode {found['mode']})"


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
def _project_modes() -> Modes:
    """A row without a mode is of its chip's default mode."""
    folder, found = conf_dir() / "hardware", defaultdict[tuple[str, str], set[str]](set)
    with (folder / "measured" / "speeds.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            mode = row["mode"] or _default_mode(folder / "chip" / f"{row['chip']}.yaml")
            found[processor_of(row["chip"]), row["software"]].add(mode)
    return {place: frozenset(modes) for place, modes in found.items()}


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
