"""Figures of stages, as they are saved."""

import pytest
from matplotlib.figure import Figure

from training.fitting.figures import save_figure


@pytest.mark.parametrize("lines", [1, 5, 12])
def test_the_legend_lies_in_the_picture_and_covers_no_panel(lines, tmp_path):
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for number in range(lines):
        axes.plot([0, 1], [0, number], label=f"prefill behind a cache, held out {number}")
    axes.set(xlabel="measured, ms", ylabel="predicted, ms")
    save_figure(figure, tmp_path / "a.png", "predicted against measured")
    figure.draw_without_rendering()
    legend, panel = figure.legends[0].get_window_extent(), axes.get_tightbbox()
    assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= legend.y0
    assert legend.y1 <= panel.y0
    assert panel.height > 0.4 * figure.bbox.height


@pytest.mark.usefixtures("every_kind")
def test_a_figure_is_a_png_pdf_and_svg_file(tmp_path):
    save_figure(Figure(), tmp_path / "a.png", "predicted against measured")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pdf", ".png", ".svg"]
