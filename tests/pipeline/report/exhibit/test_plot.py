"""Figures of exhibits with many lines, as they are saved."""

import pytest

from pipeline.report import figures
from pipeline.report.estimate import Estimate, estimate_mean
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.plot import build_panels, draw_exhibit, panels_figure
from pipeline.report.exhibit.rows import ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import ExhibitColumn, ExhibitFigure
from pipeline.report.series_style import COLOURS, POLICIES
from tests.pipeline.report.test_figures import assert_readable


def exhibit(lines: int) -> RenderedExhibit:
    """Lines of built-in policies, three points each, the first of which the paper reports too."""
    policies = [*POLICIES, *(f"ours {number}" for number in range(lines))][:lines]
    rows = [
        ExhibitRow(
            policy,
            f"rate {rate}",
            {"q": estimate_mean([0.1 * place + rate, 0.2])},
            {"policy": policy, "rate": f"{rate}"},
        )
        for place, policy in enumerate(policies)
        for rate in (1, 2, 4)
    ]
    reported = {policies[0]: {"rate 1": {"q": 0.5}}}
    shape = Exhibit(
        "Fig. 7: delay by rate", (ExhibitColumn("q"),), reported=reported, figure=ExhibitFigure("{rate}", "q")
    )
    return RenderedExhibit.with_reported_rows(shape, rows)


@pytest.mark.parametrize("lines", [8, 20, 40])
def test_lines_of_an_exhibit_are_told_apart_and_its_legend_covers_nothing(lines, monkeypatch, tmp_path):
    found = []
    create = figures.create_figure
    monkeypatch.setattr(figures, "create_figure", lambda *size: found.append(create(*size)) or found[-1])
    path = draw_exhibit(exhibit(lines), tmp_path / "exhibit.png")
    (axes,) = found[0].axes
    texts = [text.get_text() for text in found[0].legends[0].get_texts()]
    assert texts[-1] == f"{POLICIES[0]}, reported"
    assert len(set(texts)) == lines + 1
    drawn = [one.lines[0].get_color() for one in axes.containers]
    assert drawn[: len(POLICIES)] == list(COLOURS[: min(lines, len(POLICIES))])
    assert_readable(found[0], lines, path)


@pytest.mark.parametrize(
    ("values", "scale"), [((0, 10, 1000), "symlog"), ((1, 10, 1000), "log"), ((0, 0, 0), "symlog")]
)
def test_a_logarithmic_axis_shows_a_value_of_zero(values, scale):
    figure = ExhibitFigure("{rate}", "q", log_y=True)
    rows = [
        ExhibitRow("a", f"rate {rate}", {"q": Estimate({"": value})}, {"rate": f"{rate}"})
        for rate, value in enumerate(values)
    ]
    shown = RenderedExhibit(Exhibit("cost by rate", (ExhibitColumn("q"),), figure=figure), rows)
    (axes,) = panels_figure(shown, figure, build_panels(shown, figure), (4.0, 3.0)).axes
    assert axes.get_yscale() == scale
    assert axes.get_ylim()[0] < min(values) <= max(values) < axes.get_ylim()[1]
