"""How figures look: sizes, colours, axes; saved as PNG, the same content always as the same bytes."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT_COLOUR, MUTED_COLOUR = "#1f2933", "#9aa5b1"
COLOURS = ("#3366cc", "#d9572b", "#2f9e6e", "#8b5cc7", "#c79a1b", "#5f6b7a", "#c2417c", "#1fa3b8")


def create_figure(width: float, height: float) -> "Figure":
    """An empty figure; inches. It draws without a display and shares no state with other figures."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: "Axes", x: str, y: str) -> None:
    """Name both axes and leave only what helps to read them."""
    axes.set_xlabel(x, fontsize=9, color=TEXT_COLOUR)
    axes.set_ylabel(y, fontsize=9, color=TEXT_COLOUR)
    axes.tick_params(labelsize=8.5, colors=TEXT_COLOUR, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED_COLOUR)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def save_figure(figure: "Figure", path: Path, title: str) -> Path:
    """Write the figure under its title; the path again."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=TEXT_COLOUR)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path
