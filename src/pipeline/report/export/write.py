"""Writes what `export=` and `python -m pipeline report` ask for."""

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.errors import UserError
from pipeline.report.context import command_line
from pipeline.report.exhibit.schema import Exhibit
from pipeline.report.export.finished import Finished, FinishedError
from pipeline.report.export.latex import latex_table
from pipeline.report.export.page import html_page
from pipeline.report.export.results import ResultTable
from pipeline.report.export.significance import judge
from pipeline.report.export.tables import EXHIBIT, written_exhibit_table
from pipeline.report.export.tidy import tidy_csv
from pipeline.report.mlflow_store import changes_result

FOLDER, PAGE = "export", "report.html"
REQUESTS = ("median", "slowest")
"""The requests of each row whose time lines a page has by default."""


def write_exports(found: Finished, kinds: Sequence[str], requests: Sequence[str] = REQUESTS) -> list[Path]:
    """Writes the kinds below the results' folder; the files."""
    folder, source = found.folder / FOLDER, _source(found)
    made = write_tables(found.tables, kinds, folder, source)
    if "figures" in kinds:
        from pipeline.report.export.figures import save_figures

        for path in save_figures(list(found.figures()), folder).values():
            made += [path.with_suffix(".pdf"), path]
    if "html" in kinds:
        made.append(_write(found.folder / PAGE, html_page(found, requests)))
    return made


def write_tables(tables: Sequence[ResultTable], kinds: Sequence[str], folder: Path, source: str = "") -> list[Path]:
    """Writes each table as LaTeX and CSV, as far as `kinds` has them; the files."""
    made = []
    for table in tables if {"latex", "csv"} & set(kinds) else ():
        found = judge(table)
        if "latex" in kinds:
            made.append(_write(folder / f"{table.name}.tex", latex_table(table, found, source)))
        if "csv" in kinds:
            made.append(_write(folder / f"{table.name}.csv", tidy_csv(table, found)))
    return made


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fingerprint.write_atomic(path, text)
    return path


def _source(found: Finished) -> str:
    """The command and the revisions, for a comment: of a machine's folders their last part alone."""
    words = (found.note.command or found.note.overrides) if found.note else found.rows[0].result.overrides
    public = [
        PurePath(word).name if word.startswith("/") else word
        for word in words
        if changes_result(word.lstrip("+")) and "=/" not in word
    ]
    revisions = sorted({row.result.revision for row in found.complete if row.result.revision})
    return f"{command_line(public)}; code {', '.join(revisions) or 'without revision'}"


def write_kept(file: Path, kinds: Sequence[str], folder: Path) -> list[Path]:
    """Writes the table of an exhibit.json, or of a kept result of docs/results, below `folder`.

    Raises FinishedError for another file, and for figures and pages, which need a sweep's folder.
    """
    if more := [kind for kind in kinds if kind not in ("latex", "csv")]:
        raise FinishedError(f"{file} is one written table: it has latex and csv. For {', '.join(more)} name the folder "
                            "of its sweep.")  # fmt: skip
    try:
        node: Any = json.loads(file.read_text(encoding="utf-8"))
        kept = "exhibit" in node
        name = f"{file.parent.name}-{file.stem}" if kept else EXHIBIT
        exhibit = _declared(node["experiment"]) if kept else None
        table = written_exhibit_table(node["exhibit"] if kept else node, exhibit, name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise FinishedError(f"{file} is no exhibit.json and no kept result: {problem}.") from problem
    source = f"kept result of +experiment={node['experiment']}" if "experiment" in node else ""
    return write_tables([table], kinds, folder, source)


def _declared(experiment: str) -> Exhibit | None:
    """The exhibit as conf/ declares it today, which says what is better; None if it is gone."""
    from pipeline.report.results.kept import drawn_exhibit

    try:
        return drawn_exhibit(experiment).exhibit
    except UserError:
        return None
