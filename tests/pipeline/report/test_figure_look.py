"""The colours of print are told apart by people who see fewer of them."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.report.figure_look import PRINT, PRINT_COLOURS
from pipeline.report.series_style import POLICIES, series_styles

_SEEN = {
    "all": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
"""What is seen of linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, severity 1."""
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_LEAST_DISTANCE = 15.0
"""In CIELAB; 2.3 is just noticeable side by side."""


def lab(colour: str, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = _TO_XYZ @ np.clip(seen @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", list(_SEEN))
def test_print_colours_are_far_apart(kind: str) -> None:
    for one, other in combinations(PRINT_COLOURS, 2):
        assert np.linalg.norm(lab(one, _SEEN[kind]) - lab(other, _SEEN[kind])) > _LEAST_DISTANCE, (one, other)


def test_all_policies_are_told_apart_in_print_by_colour_marker_and_line() -> None:
    styles = series_styles({policy: policy for policy in POLICIES}, PRINT_COLOURS)
    assert len(set(styles.values())) == len(POLICIES)
    first = series_styles({policy: policy for policy in POLICIES[:7]}, PRINT_COLOURS)
    assert len({style.colour for style in first.values()}) == len({style.marker for style in first.values()}) == 7


def test_text_of_print_is_seven_points_or_more() -> None:
    assert min(PRINT.label_pt, PRINT.tick_pt, PRINT.legend_pt, PRINT.note_pt) >= 7
