"""`python -m pipeline sweep`: how far a sweep has come, and going on with one that was stopped."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import UserError
from pipeline.report import job_result
from pipeline.report.choices import differing_overrides
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import MASK
from pipeline.report.sweep_note import SWEEP_FILE, SweepNote, read_note
from pipeline.report.table import ReportPart, Table, print_parts

USAGE = """\
python -m pipeline sweep status FOLDER             its jobs: complete, failed, begun, not begun
python -m pipeline sweep resume FOLDER [WORD ...]  the same command again in the same folder, with the WORDs, such as
                                                   hydra/launcher=joblib, which leaves complete jobs as they are"""
GoOn = Callable[[list[str]], None]
"""Runs a command line of `python -m pipeline`."""


def main(argv: Sequence[str], go_on: GoOn) -> int:
    """Runs one of the commands. Raises UserError."""
    if len(argv) < 2 or argv[0] not in ("status", "resume") or (argv[0] == "status" and len(argv) > 2):
        raise UserError(f"sweep: {' '.join(argv) or 'nothing'} was asked for; there are\n{USAGE}")
    folder = Path(argv[1]).absolute()
    note = read_note(folder)
    if note is None:
        raise UserError(f"sweep: there is no readable {SWEEP_FILE} in {folder}; it is what a sweep's folder has.")
    if argv[0] == "status":
        print_parts(status_parts(folder, note), sys.stdout)
    else:
        command = resume_command(folder, note, argv[2:])
        _enter(note.folder)
        go_on(command)
    return 0


def _enter(folder: str) -> None:
    """Makes the folder in which the command ran the current one. Raises UserError if it is not there."""
    try:
        os.chdir(folder)
    except OSError as problem:
        raise UserError(
            f"sweep resume: the command ran in {folder}, which cannot be entered here ({problem.strerror}). Make that "
            f"folder, or write into {SWEEP_FILE}, under `folder`, where the command is to run."
        ) from problem


def status_parts(folder: Path, note: SweepNote) -> list[ReportPart]:
    """A row for each job that is not complete, and the numbers of jobs by status."""
    results = {number: _result(folder, note, number) for number in _numbers(folder, note)}
    texts = {number: _status(result) for number, result in results.items()}
    counts = ", ".join(f"{count} {text}" for text, count in Counter(texts.values()).items())
    ends = "its last command ended" if note.ended else "its last command was stopped, or still runs"
    left = [number for number, text in texts.items() if text != "complete"]
    choices = _choices(note, results)
    names = list(next(iter(choices.values()), {}))
    rows = tuple((str(number), texts[number], *choices[number].values(), _problem(results[number])) for number in left)
    table = Table(("job", "status", *names, "problem"), rows, num_label_columns=3 + len(names))
    return [f"{len(texts)} jobs: {counts}; {ends}", *([table] if rows else [])]


def _numbers(folder: Path, note: SweepNote) -> list[int]:
    begun = {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}
    return list(range(len(note.jobs))) or sorted(begun)


def _result(folder: Path, note: SweepNote, number: int) -> JobResult | None:
    """None also where another job of that number left one."""
    found = job_result.read_result(folder / str(number))
    return found if found and note.lists(number, found.overrides) else None


def _status(result: JobResult | None) -> str:
    if result is None:
        return "not begun"
    return "begun" if result.status == "running" else result.status


def _problem(result: JobResult | None) -> str:
    return " ".join((result.error or "").split())[:200] if result else ""


def _choices(note: SweepNote, results: Mapping[int, JobResult | None]) -> dict[int, dict[str, str]]:
    """Job -> its choices in which jobs differ; of a search, only those of jobs that began."""
    known = {
        number: note.jobs[number] if number < len(note.jobs) else result.overrides if result else ()
        for number, result in results.items()
    }
    return dict(zip(known, differing_overrides([list(words) for words in known.values()]), strict=True))


def resume_command(folder: Path, note: SweepNote, words: Sequence[str]) -> list[str]:
    """The command line that goes on with the sweep; words replace the command's of the same setting, with one plus or
    another. Raises UserError if it held a secret.
    """
    signs = {_key(word): word[: len(word) - len(word.lstrip("+"))] for word in note.command}
    given = [_with_sign(word, signs) for word in words]
    replaced = {*map(_key, words), "hydra.sweep.dir"}
    kept = [word for word in note.command if _key(word) not in replaced]
    if masked := [word for word in kept if MASK in word]:
        raise UserError(f"sweep resume: the value of {masked[0]} is a secret and was not written; give it again.")
    if not kept:
        raise UserError(f"sweep resume: {folder / SWEEP_FILE} does not say the command; run it again by hand.")
    return [*kept, *given, f"hydra.sweep.dir={_quoted(str(folder))}"]


def _quoted(text: str) -> str:
    """The text for Hydra, which takes a bare comma for a sweep."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _with_sign(word: str, signs: Mapping[str, str]) -> str:
    """The word with the plus of the command, which Hydra wants for a setting that its files do not have."""
    return word if word.startswith("~") or _key(word) not in signs else signs[_key(word)] + word.lstrip("+")
