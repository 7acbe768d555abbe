"""Maps of exhibits: a cell for each row, in the colour of what stands in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.report import figures
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.map_plot import draw_maps
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import ExhibitColumn, ExhibitMap
from pipeline.report.series_style import COLOURS, POLICIES

COLUMNS = ("rtt", "acceptance", "device", "devices", "fastest", "cheapest")
LAYOUT = ExhibitMap("rtt", "acceptance", ("fastest", "cheapest"), "device", "devices")
CELLS = {
    (0.0, 0.3, "Pi", 1.0): ("sled", "wisp"),
    (40.0, 0.3, "Pi", 1.0): ("wisp = sled = hat", "none"),
    (0.0, 0.3, "Pi", 64.0): ("hat", "sled"),
    (0.0, 0.6, "M1", 1.0): ("sled", "sled"),
}


def shown() -> RenderedExhibit:
    def number(value: float) -> Estimate:
        return Estimate({"": value})

    rows = []
    for (rtt, acceptance, device, devices), (fastest, cheapest) in CELLS.items():
        known: dict[str, Cell] = {"rtt": number(rtt), "acceptance": number(acceptance), "devices": number(devices)}
        known |= {"device": device, "fastest": fastest, "cheapest": cheapest}
        rows.append(ExhibitRow("", f"{device} {devices} {rtt} {acceptance}", known))
    rows.append(ExhibitRow("", "not run", problem="not run"))
    return RenderedExhibit(Exhibit("Who wins", tuple(map(ExhibitColumn, COLUMNS)), map=LAYOUT), rows)


def test_each_column_of_colours_is_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    create = figures.create_figure
    monkeypatch.setattr(figures, "create_figure", lambda *size: made.append(create(*size)) or made[-1])
    paths = draw_maps(shown(), tmp_path / "exhibit.png")
    assert [path.name for path in paths] == ["exhibit.png", "exhibit_cheapest.png"]
    assert all(path.exists() for path in paths)
    titles = [axes.get_title() for axes in made[0].axes]
    assert titles == ["Pi, 1 devices", "Pi, 64 devices", "M1, 1 devices", "M1, 64 devices"]
    legend = [text.get_text() for text in made[0].legends[0].get_texts()]
    assert set(legend) == {"sled", "wisp", "hat"}


def test_a_cell_has_the_colour_of_its_policy_and_a_tie_a_square_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    create = figures.create_figure
    monkeypatch.setattr(figures, "create_figure", lambda *size: made.append(create(*size)) or made[-1])
    draw_maps(shown(), tmp_path / "exhibit.png")
    colour = {name: COLOURS[POLICIES.index(name)] for name in ("sled", "wisp", "hat")}
    drawn = [(hex_colour(patch), round(patch.get_width(), 2)) for patch in made[0].axes[0].patches]
    assert drawn == [(colour["sled"], 0.96), (colour["wisp"], 0.96), (colour["sled"], 0.42)]  # of three that tie, two
    cheapest = [hex_colour(patch) for patch in made[1].axes[0].patches]
    assert cheapest == [colour["wisp"]]  # where none keeps the promise there is no colour


def test_a_map_of_cells_without_a_winner_has_no_colour_and_no_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "save_figure", lambda _sheet, path, _title: path)  # takes seconds
    rows = [replace(row, measured={**row.measured, "cheapest": "none"}) for row in shown().rows]
    paths = draw_maps(replace(shown(), rows=rows), tmp_path / "exhibit.png")
    assert [path.name for path in paths] == ["exhibit.png", "exhibit_cheapest.png"]


def hex_colour(patch: object) -> str:
    from matplotlib.colors import to_hex

    return str(to_hex(patch.get_facecolor()))  # type: ignore[attr-defined]


def test_without_a_map_nothing_is_drawn(tmp_path: Path) -> None:
    plain = RenderedExhibit(Exhibit("Who wins", tuple(map(ExhibitColumn, COLUMNS))), shown().rows)
    assert draw_maps(plain, tmp_path / "exhibit.png") == []


def test_a_map_names_columns_of_the_exhibit() -> None:
    with pytest.raises(ValueError, match=r"exhibit\.map: there is no column 'fastest'"):
        Exhibit("Who wins", (ExhibitColumn("rtt"), ExhibitColumn("acceptance")), map=LAYOUT)
