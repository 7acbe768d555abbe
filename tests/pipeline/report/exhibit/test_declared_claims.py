"""The claims of the papers' exhibits, as their files declare them before any run."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pipeline.config.arguments import conf_dir

FEWEST_REPORTED = {"wisp": 16, "token_routing": 8}
"""Claims with a reported figure that the page of claims needs of each paper."""


def exhibits(paper: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The exhibits that the files of a paper declare, by file."""
    for file in sorted((conf_dir() / "experiment" / paper).glob("[!_]*.yaml")):
        yield file.stem, yaml.safe_load(file.read_text(encoding="utf-8"))["exhibit"]


def claims(paper: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, exhibit in exhibits(paper):
        yield from ((name, exhibit, claim) for claim in exhibit["claims"])


@pytest.mark.parametrize("paper", FEWEST_REPORTED)
def test_the_page_has_claims_enough_of_each_paper(paper: str) -> None:
    assert sum("reported" in claim for _, _, claim in claims(paper)) >= FEWEST_REPORTED[paper]


@pytest.mark.parametrize("paper", FEWEST_REPORTED)
def test_a_claim_that_a_paper_does_not_make_says_so(paper: str) -> None:
    wrong = [
        (name, claim["statement"])
        for name, _, claim in claims(paper)
        if ("reported" in claim) == claim["statement"].startswith("ours: ")
    ]
    assert wrong == []


@pytest.mark.parametrize("paper", FEWEST_REPORTED)
def test_statements_are_told_apart_within_a_paper(paper: str) -> None:
    statements = [claim["statement"] for _, _, claim in claims(paper)]
    assert sorted({one for one in statements if statements.count(one) > 1}) == []


@pytest.mark.parametrize("paper", FEWEST_REPORTED)
def test_every_exhibit_names_what_decides_its_claims(paper: str) -> None:
    assert [name for name, exhibit in exhibits(paper) if not 2 <= len(exhibit["assumptions"]) <= 3] == []


@pytest.mark.parametrize("paper", FEWEST_REPORTED)
def test_a_size_is_met_within_a_quarter_of_its_effect(paper: str) -> None:
    """The effect of a ratio is what it differs from 1 by, of a difference from 0; a ratio of 1 reports none."""
    wide = []
    for name, exhibit, claim in claims(paper):
        columns = {column["name"]: column.get("relative") for column in exhibit["columns"]}
        relative = columns.get(claim["metric"])
        if claim["relation"] != "equal" or relative is None or claim["value"] == 1:
            continue
        neutral = 0 if relative.get("comparison") == "difference" else 1
        if claim["margin"] > abs(claim["value"] - neutral) / 4 + 1e-9:
            wide.append((name, claim["statement"]))
    assert wide == []
