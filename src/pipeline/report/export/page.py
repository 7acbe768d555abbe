"""One HTML file of a sweep or run that needs no network: tables, claims, figures, time lines, configuration, versions,
and the sources of figures.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from pipeline.report.comparison import ComparisonRow
from pipeline.report.context import command_line
from pipeline.report.exhibit.claims import evaluate_claims
from pipeline.report.exhibit.render import exhibit_parts
from pipeline.report.export import provenance
from pipeline.report.export.finished import Finished, read_records
from pipeline.report.export.html import TABLE_SCRIPT, TABLE_STYLE, html_table
from pipeline.report.export.tables import COMPARISON
from pipeline.report.export.timeline import KIND_COLOURS, read_time_lines, svg
from pipeline.report.mlflow_store import mask_secrets
from pipeline.report.records import RecordsError
from pipeline.report.table import LabelledTexts, format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TIMED_ROWS = 24
"""Rows of a sweep whose requests are drawn: a page of all of a large sweep would open slowly."""
_STYLE = """\
body{font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1f2933;background:#fff;margin:0 auto;
 padding:24px 28px 60px;max-width:1180px}
h1{font-size:22px;line-height:1.25;margin:0 0 4px}
h2{font-size:17px;margin:36px 0 8px;padding-top:8px;border-top:1px solid #d9dfe5}
h3{font-size:14px;margin:20px 0 6px}
nav{margin:10px 0 0}nav a{margin-right:14px;color:#0b5a94;text-decoration:none}nav a:hover{text-decoration:underline}
.facts{color:#4a5763;margin:0}
.lacking{border-left:3px solid #c2410c;background:#fdf3ee;padding:8px 12px;margin:14px 0}
.lacking ul{margin:4px 0 0;padding-left:18px}
.figures{display:flex;flex-wrap:wrap;gap:18px}
figure{margin:0;flex:0 0 360px}figure svg{width:100%;height:auto}
figcaption{color:#4a5763;font-size:12px}
svg.timeline{max-width:100%;height:auto;font-family:inherit;fill:#1f2933}
details{margin:6px 0}summary{cursor:pointer;font-weight:600}
pre{background:#f6f8fa;padding:10px 12px;overflow-x:auto;font-size:12px;line-height:1.4}
pre.command{white-space:pre-wrap;overflow-wrap:anywhere}
table.plain{border-collapse:collapse;font-size:13px}
table.plain td,table.plain th{padding:3px 12px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid #eef1f4}
table.plain td:first-child{white-space:nowrap}
.key{display:inline-block;width:11px;height:11px;margin-right:4px}.pair{margin-right:12px;white-space:nowrap}
.claim{font-weight:600}.claim.holds{color:#00694a}.claim.not{color:#a03015}.claim.open{color:#7a5c00}
@media print{nav,summary{display:none}details>*{display:block}}
"""


def html_page(found: Finished, requests: Sequence[str]) -> str:
    """The whole page; `requests` names the requests of each row whose time lines it has (`choose_requests`).

    Raises UserError for a request that a row lacks.
    """
    sections = [
        ("tables", "Tables", _tables(found)),
        ("claims", "Claims", _claims(found)),
        ("figures", "Figures", _figures(found)),
        ("timelines", "Time lines", _time_lines(found, requests)),
        ("configuration", "Configuration", _configuration(found)),
        ("versions", "Versions", _facts(provenance.versions(found.complete), len(found.complete))),
        ("sources", "Sources of figures", _facts(provenance.sources(found.complete), len(found.complete))),
    ]
    written = [(name, title, body) for name, title, parts in sections if (body := "".join(parts))]
    return html_document(found.title, "".join(_header(found)), written)


def html_document(title: str, header: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """A page of one file: a `header` below the title, and sections, each by id, title and body."""
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in sections)
    bodies = "".join(f'<h2 id="{name}">{escape(heading)}</h2>\n{body}' for name, heading, body in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}{TABLE_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{header}<nav>{links}</nav>\n{bodies}"
        f"<script>\n{TABLE_SCRIPT}</script>\n</body></html>\n"
    )


def _header(found: Finished) -> Iterator[str]:
    total = max(len(found.rows), len(found.note.jobs) if found.note else 0)
    words = found.note.command if found.note else found.rows[0].result.overrides
    jobs = f"{len(found.complete)} of {total} jobs complete" if found.note else "one run"
    yield f'<p class="facts">{jobs}</p>\n'
    if words:
        yield f"<pre class=command>{escape(command_line(words))}</pre>\n"
    if found.lacking:
        items = "".join(f"<li>{escape(text)}</li>" for text in found.lacking)
        yield f'<div class="lacking"><b>Not all jobs have results.</b><ul>{items}</ul></div>\n'


def _tables(found: Finished) -> Iterator[str]:
    """Behind an exhibit the table of its jobs is folded."""
    for table in found.tables:
        folded = table.name == COMPARISON and len(found.tables) > 1
        title = escape(table.title)
        if folded:
            yield f"<details><summary>{title}</summary>{html_table(table)}</details>\n"
        else:
            yield (f"<h3>{title}</h3>\n" if len(found.tables) > 1 else "") + html_table(table)


def _claims(found: Finished) -> Iterator[str]:
    """Claims and what differs from the paper, as the exhibit's report has them."""
    for shown in found.exhibits.values():
        results = evaluate_claims(shown)
        parts = [one for one in exhibit_parts(shown, results) if isinstance(one, LabelledTexts)]
        rows = "".join(
            f'<tr><td class="{_claim_class(label)}">{escape(label)}</td><td>{escape(text)}</td></tr>'
            for part in parts[1:]
            for label, text in part.pairs
        )
        yield f'<table class="plain">{rows}</table>\n' if rows else ""


def _claim_class(status: str) -> str:
    known = {"holds": "claim holds", "does not hold": "claim not", "inconclusive": "claim open"}
    return known.get(status, "label")


def _figures(found: Finished) -> Iterator[str]:
    drawn = [
        f"<figure>{inline_svg(figure, name)}<figcaption>{escape(title)}</figcaption></figure>"
        for name, title, figure in found.figures()
    ]
    if drawn:
        yield f'<div class="figures">{"".join(drawn)}</div>\n'


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element whose ids are not those of another figure of the page."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>\s*", "", element, flags=re.DOTALL)
    return re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", element)


def _time_lines(found: Finished, requests: Sequence[str]) -> Iterator[str]:
    rows = _first_of_each(found)
    drawn = [block for row in rows[:MAX_TIMED_ROWS] if (block := _row_time_lines(found, row, requests))]
    if drawn:
        yield f'<p class="facts">{_colour_key()}</p>\n'
    yield from drawn
    if drawn and len(rows) > MAX_TIMED_ROWS:
        yield f'<p class="facts">{len(rows) - MAX_TIMED_ROWS} more rows are not drawn.</p>\n'


def _colour_key() -> str:
    """What the colours of time lines mean."""
    marks = (f'<span class="key" style="background:{colour}"></span>{kind}' for kind, colour in KIND_COLOURS.items())
    return " ".join(f'<span class="pair">{mark}</span>' for mark in marks)


def _first_of_each(found: Finished) -> list[ComparisonRow]:
    """The first complete job of each row: jobs that an exhibit pools (seeds) are one."""
    pooled = {shown.exhibit.rows.pool_over for shown in found.exhibits.values() if shown.exhibit.rows}
    names = {name for key in pooled for name in (key, key.rpartition(".")[2])}
    kept: dict[tuple[str, ...], ComparisonRow] = {}
    for row in found.complete:
        kept.setdefault(tuple(value for key, value in row.choices.items() if key not in names), row)
    return list(kept.values())


def _row_time_lines(found: Finished, row: ComparisonRow, requests: Sequence[str]) -> str:
    records = read_records(row)
    if records is None or not row.result.artifact:
        return ""
    try:
        lines = [line for line in read_time_lines(found.artifact(row), records, requests) if line.spans]
    except RecordsError:
        return ""
    blocks = []
    for line in lines:
        one = line.request
        took = f"{format_number(1000 * one.end_to_end_s)} ms end to end" if one.end_to_end_s is not None else one.ending
        text = f"{line.chosen}: request {one.request}, {one.prompt_tokens} tokens in, {len(one.tokens)} out, {took}"
        blocks.append(f'<h3>{escape(text)}</h3>{svg(line)}<p class="facts">from the {escape(line.source)}</p>')
    name = ", ".join(value for value in row.choices.values() if value != "-") or row.result.policy
    opened = " open" if len(found.complete) == 1 else ""
    return f"<details{opened}><summary>{escape(name)}</summary>{''.join(blocks)}</details>\n" if blocks else ""


def _configuration(found: Finished) -> Iterator[str]:
    """The choices of each job, and the composed YAML: of the first job in full, of the others where they differ."""
    if found.note is not None:
        rows = "".join(_job_line(row) for row in found.rows)
        yield f'<table class="plain"><tr><th>job</th><th>status</th><th>words</th></tr>{rows}</table>\n'
    first = None
    for row in found.rows:
        text = _composed_yaml(found, row)
        if text is None:
            continue
        name = "the run" if row.result.number is None else f"job {row.result.number}"
        if first is None:
            first = (name, text)
            yield f"<details><summary>{name}, composed</summary><pre>{escape(text)}</pre></details>\n"
        else:
            lines = difflib.unified_diff(first[1].splitlines(), text.splitlines(), first[0], name, "", "", 2, "")
            yield f"<details><summary>{name}, what differs from {first[0]}</summary><pre>"
            yield f"{escape(chr(10).join(lines))}</pre></details>\n"


def _job_line(row: ComparisonRow) -> str:
    status = "complete" if row.problem is None else row.problem
    return (
        f"<tr><td>{row.result.number}</td><td>{escape(status)}</td>"
        f"<td><code>{escape(' '.join(row.result.overrides))}</code></td></tr>"
    )


def _composed_yaml(found: Finished, row: ComparisonRow) -> str | None:
    """The job's configuration without values of secrets; None where Hydra's note of it is gone."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, and not in every build
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        path = found.job_folder(row) / ".hydra" / "config.yaml"
        node: Any = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, yaml.YAMLError):
        return None
    return str(yaml.dump(mask_secrets(node), Dumper=dumper, sort_keys=False, allow_unicode=True, width=110))


def _facts(facts: Sequence[provenance.Fact], num_jobs: int) -> Iterator[str]:
    several = num_jobs > 1
    rows = "".join(
        f"<tr><td>{escape(fact.label)}</td><td>{escape(fact.text)}</td>"
        + (f"<td>{escape(provenance.format_jobs(fact.jobs, num_jobs))}</td>" if several else "")
        + "</tr>"
        for fact in facts
    )
    head = "<tr><th></th><th></th><th>jobs</th></tr>" if several else ""
    if rows:
        yield f'<table class="plain">{head}{rows}</table>\n'
