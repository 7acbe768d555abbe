"""The looks of figures: for a screen, with a title, and for one column of print, without one."""

from dataclasses import dataclass, replace

from pipeline.report.series_style import COLOURS

PRINT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito, Color Universal Design, 2008, without its yellow, which is too light for lines on paper."""


@dataclass(frozen=True)
class FigureLook:
    """Sizes of text in points, colours of series, and the kinds of files.

    column_in    width of a figure in inches; None: as wide as its panels
    """

    label_pt: float
    tick_pt: float
    legend_pt: float
    note_pt: float
    colours: tuple[str, ...]
    kinds: tuple[str, ...]
    column_in: float | None = None
    titled: bool = True
    marker_pt: float = 4.5
    handle_em: float = 3.0
    """The width of a legend's line, the gap between its columns, and the room beside it, in sizes of its text."""
    legend_gap_em: float = 1.5
    legend_margin_em: float = 6.0

    @property
    def handle_pt(self) -> float:
        """The width of a legend's line and marker, and of the space around them."""
        return (self.handle_em + self.legend_gap_em + 1.5) * self.legend_pt


SCREEN = FigureLook(9, 8.5, 8.5, 8, COLOURS, ("png", "pdf", "svg"))
LINE = replace(SCREEN, kinds=("png",))
"""For a job that is one line of a sweep's table: kinds for print take half of the time of its report."""
PRINT = FigureLook(
    8, 7, 7, 7, PRINT_COLOURS, ("pdf", "svg"), 3.3, titled=False, marker_pt=4, handle_em=1.8, legend_gap_em=0.8,
    legend_margin_em=2.0,
)  # fmt: skip
