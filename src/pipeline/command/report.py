"""`python -m pipeline report`: a page, LaTeX, CSV and figures of a sweep or run that has ended; `export=` of a run."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.arguments import split_options
from pipeline.errors import UserError
from pipeline.report.export import write
from pipeline.report.export.finished import Finished, read_finished
from pipeline.report.export.kinds import parse_kinds

USAGE = """\
python -m pipeline report FOLDER                             FOLDER/report.html: one page that opens without a network
python -m pipeline report FOLDER export=latex,csv,figures    FOLDER/export/*.tex, *.csv, *.pdf and *.svg; also html
python -m pipeline report FILE.json out=FOLDER               LaTeX and CSV of an exhibit.json or a kept result
  baseline=NAME        tests rows against this policy or value, and not against the best of each column
  requests=NAME,NAME   whose time lines the page has: median, slowest, fastest, or names of requests (median,slowest)"""
_OPTIONS = ("export", "baseline", "requests", "out")


def main(argv: Sequence[str]) -> int:
    """Runs the command. Raises UserError."""
    words, given = split_options(argv, _OPTIONS)
    if len(words) != 1:
        unknown = [word.partition("=")[0] for word in words if "=" in word and not Path(word).exists()]
        problem = f"there is no option {unknown[0]}" if unknown else f"{len(words)} folders are named; name one"
        raise UserError(f"report: {problem}. There are\n{USAGE}")
    place = Path(words[0]).absolute()
    kinds = parse_kinds(given["export"]) if "export" in given else ()
    if place.suffix == ".json" and not place.is_dir():
        made = write.write_kept(place, kinds or ("latex", "csv"), Path(given.get("out", write.FOLDER)).absolute())
    else:
        if "out" in given:
            raise UserError("report: out= is for a FILE.json; what is made of a folder lies in the folder.")
        requests = [name for name in given.get("requests", "").split(",") if name] or write.REQUESTS
        made = export_folder(place, kinds or ("html",), given.get("baseline"), requests)
    _say_what_was_made(made)
    return 0


def export_last(kinds: Sequence[str]) -> None:
    """Writes the kinds of this process's last sweep or run into its folder, or says that there is none. Raises
    UserError.
    """
    from pipeline.report.sweep import SweepCallback

    if SweepCallback.results is None:
        print(f"export={','.join(kinds)} wrote nothing: this command left no run and no sweep. choose and leaderboard "
              "write their tables as LaTeX and CSV without it, into the folder named above.")  # fmt: skip
        return
    _say_what_was_made(export_folder(SweepCallback.results, kinds))


def _say_what_was_made(made: Sequence[Path]) -> None:
    """One line for each folder."""
    folders = list(dict.fromkeys(path.parent for path in made))
    for folder in folders:
        print(f"written: {', '.join(path.name for path in made if path.parent == folder)} in {folder}")
    if not folders:
        print("nothing was written: there is no figure")


def export_folder(
    folder: Path, kinds: Sequence[str], baseline: str | None = None, requests: Sequence[str] = write.REQUESTS
) -> list[Path]:
    """Writes the kinds, and says which jobs lack results; the files. Raises UserError."""
    found = read_finished(folder, baseline)
    _say_what_lacks(found)
    return write.write_exports(found, kinds, requests)


def _say_what_lacks(found: Finished) -> None:
    if found.lacking:
        print(f"{len(found.complete)} of {max(len(found.rows), len(found.note.jobs) if found.note else 0)} jobs have "
              "results; they are printed, the others are marked:")  # fmt: skip
        for text in found.lacking:
            print(f"  {text}")
