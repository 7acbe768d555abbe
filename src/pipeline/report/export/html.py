"""A table of results as HTML whose columns sort: a piece of a page, and the style and script that it needs."""

from collections.abc import Iterator
from html import escape

from pipeline.report.export.legend import DAGGER, legend
from pipeline.report.export.results import ResultTable, format_reported
from pipeline.report.export.significance import Judgement, judge

TABLE_STYLE = """\
table.results{border-collapse:collapse;border-top:1.5px solid #1f2933;border-bottom:1.5px solid #1f2933;
 font-variant-numeric:tabular-nums;font-size:13px;white-space:nowrap}
table.results th{border-bottom:1px solid #1f2933;padding:4px 10px;text-align:right;vertical-align:bottom;
 cursor:pointer;font-weight:600;white-space:normal;max-width:11em}
table.results th:hover{background:#eef2f6}
table.results th[aria-sort]{background:#e3eaf2}
table.results th[aria-sort=ascending]:after{content:" \\25b2";font-size:9px}
table.results th[aria-sort=descending]:after{content:" \\25bc";font-size:9px}
table.results td{padding:3px 10px;text-align:right;border-bottom:1px solid #eef1f4}
table.results .label{text-align:left}
table.results td.problem{text-align:left;color:#a03015;white-space:normal}
table.results .bounds{color:#68747f;font-size:11px}
table.results .unit{color:#68747f;font-weight:400}
.scroll{overflow-x:auto;max-width:100%}
.legend{color:#4a5763;font-size:12px;margin:6px 0 0;max-width:70em}
"""
TABLE_SCRIPT = """\
document.querySelectorAll("table.results th").forEach(function (head) {
  head.tabIndex = 0;
  function sort() {
    var table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    var down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach(function (one) { one.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    function key(row) {
      var cell = row.cells[at];
      if (!cell || cell.colSpan > 1) return null;
      var number = parseFloat(cell.dataset.sort);
      return isNaN(number) ? (cell.dataset.sort === "" ? null : cell.textContent) : number;
    }
    Array.from(body.rows).sort(function (a, b) {
      var x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null);
      var order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    }).forEach(function (row) { body.appendChild(row); });
  }
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(); });
});
"""
_ARROWS = {"higher": "&nbsp;↑", "lower": "&nbsp;↓", "": ""}


def html_table(table: ResultTable, found: Judgement | None = None) -> str:
    """The table with its legend. A page that has it needs TABLE_STYLE, and TABLE_SCRIPT at its end, once each.

    `found` is what `judge` says of the table, where it is known already.
    """
    found = found or judge(table)
    marks = "".join(f"<div><b>{escape(label)}</b> {escape(text)}</div>" for label, text in legend(table, found))
    heads = "".join(_heads(table))
    places = sorted(range(len(table.rows)), key=lambda place: table.groups.index(table.rows[place].group))
    rows = "".join(f"<tr>{''.join(_cells(table, place, found))}</tr>\n" for place in places)
    return (
        f'<div class="scroll"><table class="results" id="{escape(table.name)}">\n<thead><tr>{heads}</tr></thead>\n'
        f'<tbody>\n{rows}</tbody></table></div>\n<div class="legend">{marks}</div>\n'
    )


def _grouped(table: ResultTable) -> bool:
    return any(table.groups)


def _heads(table: ResultTable) -> Iterator[str]:
    for head in (*(("group",) if _grouped(table) else ()), *table.label_heads):
        yield f'<th class="label">{escape(head)}</th>'
    for place, column in enumerate(table.columns):
        unit = f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""
        if place in table.reported_columns:
            yield f"<th>{escape(column.name)}{unit}<br><span class=unit>reported</span></th>"
        yield f'<th title="{escape(column.metric)}">{escape(column.name)}{unit}{_ARROWS[column.better]}</th>'


def _cells(table: ResultTable, place: int, found: Judgement) -> Iterator[str]:
    row = table.rows[place]
    for label in (*((row.group,) if _grouped(table) else ()), *row.labels):
        yield f'<td class="label" data-sort="{escape(label)}">{escape(label)}</td>'
    if not row.cells or (row.is_empty and row.problem):
        width = len(table.columns) + len(table.reported_columns)
        yield f'<td class="problem" colspan="{max(2, width)}">{escape(row.problem or "-")}</td>'
        return
    for at, cell in enumerate(row.cells):
        if at in table.reported_columns:
            number = cell.reported if isinstance(cell.reported, float | int) else ""
            yield f'<td data-sort="{number}">{escape(format_reported(cell.reported))}</td>'
        value = escape(cell.format_value())
        value = f"<b>{value}</b>" if (place, at) in found.best else value
        mark = f'<sup title="{_p_text(found, place, at)}">{DAGGER}</sup>' if found.differs(place, at) else ""
        bounds = cell.format_bounds()
        shown = f' <span class="bounds">[{bounds[0]}, {bounds[1]}]</span>' if bounds else ""
        yield f'<td data-sort="{"" if cell.value is None else repr(float(cell.value))}">{value}{mark}{shown}</td>'


def _p_text(found: Judgement, row: int, column: int) -> str:
    p = found.p_values[row, column]
    return "p < 0.001" if p < 0.0005 else f"p = {p:.3f}"
