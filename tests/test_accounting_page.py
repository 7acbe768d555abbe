"""Figures that docs/accounting.md calls those of now are the ones that docs/results keeps."""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAIRS, SPEC_BENCH = ("160m_13b", "1b_13b", "7b_70b"), "4 requests/s"


def kept(experiment: str, group: str, row: str, column: str) -> dict[str, float]:
    exhibit = json.loads((DOCS / "results" / f"{experiment}.json").read_text(encoding="utf-8"))["exhibit"]
    (found,) = (one for one in exhibit["rows"] if (one["group"], one["row"]) == (group, row))
    measured: dict[str, float] = found["columns"][column]["measured"]
    return measured


def now(point: str) -> str:
    """The fourth cell of the table's row on a point: before, now, command and test follow what was wrong."""
    lines = (DOCS / "accounting.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {point} |"))
    return line.split(" | ")[3]


@pytest.mark.parametrize(
    ("point", "text", "experiment", "row", "column", "groups"),
    [
        ("A1", "Hybrid {:.2f}, {:.2f}, {:.1f}", "synera/table4", "hybrid", "cost W verified, ms", PAIRS),
        ("A1", "EdgeFM-LLM {:.3f}, {:.2f}, {:.1f}", "synera/table4", "edgefm", "cost W written, ms", PAIRS),
        ("A2", "{:.3f}", "hyperion/fig12", "hyperion_2_tiers", "of four tiers'", ["llama3_8b, 14 tasks"]),
        ("A2", "{:.3f}", "hat/table4", "hat", "TBT of U-shape's", ["vicuna_7b"]),
        ("A3", "({:.1f} against", "synera/table4", "synera", "TBT, ms", ["1b_13b"]),
        ("A3", "({:.1f} against", "synera/table4", "synera", "service a token, ms", ["1b_13b"]),
        ("A6", "{:.2f}, {:.2f} and {:.2f} times by exact match", "synera/table4", "synera", "of edge", PAIRS),
        ("A6", "{:.2f}, {:.2f} and {:.2f} times by ROUGE-1", "synera/table4", "synera", "ROUGE-1 of edge", PAIRS),
        ("A10", "{:.1f}, {:.1f}, {:.1f} %", "synera/table4", "synera_percentile", "quality", PAIRS),
        ("A10", "{:.1f}, {:.1f}, {:.1f} %", "synera/table4", "edgefm_whole_answer", "quality", PAIRS),
        ("A10", "TTFT {:.0f} ms", "hat/fig6", "hat_printed_chunks", "TTFT, ms", [SPEC_BENCH]),
        ("A10", "(ours {:.0f})", "hat/fig6", "hat", "TTFT, ms", [SPEC_BENCH]),
        ("A11", "{:.1f}", "synera/table4", "synera", "quality", ["1b_13b"]),
        ("A12", "({:.2f} against", "synera/table4", "synera", "cost, USD/M tokens", ["1b_13b"]),
    ],
)
def test_figures_of_now_are_kept(point, text, experiment, row, column, groups):
    values = [kept(experiment, group, row, column)["value"] for group in groups]
    assert text.format(*values) in now(point)
