"""Exhibits that are refused before the first job of a sweep."""

import re
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from pipeline.errors import ConfigError
from pipeline.report.exhibit.sweep import SweepExhibit, prepare_exhibit

EXHIBIT = """
_target_: pipeline.report.exhibit.Exhibit
title: A toy
columns:
  - {name: quality}
  - {name: "cost vs cloud", metric: cost/verified_s, relative: {row: cloud}}
  - {name: alpha, metric: stage/thresholds/alpha}
rows: {label: "{variant}", group: "{pair}", pool_over: training.seed}
reported:
  small:
    cloud: {quality: 0.7}
claims:
  - {statement: it costs less, row: no_lookahead, baseline: cloud, metric: cost/verified_s, relation: below}
"""
PARAMS = {"+variant": "cloud,no_lookahead", "+pair": "small", "training.seed": "0,3"}


def asked(
    exhibit: str = EXHIBIT, *words: str, sweeper: str = "x.BasicSweeper", goal: str = "serve"
) -> SweepExhibit | None:
    """The exhibit that a multirun with these command-line words prepares."""
    hydra: dict[str, Any] = {
        "sweeper": {"_target_": sweeper, "params": PARAMS},
        "overrides": {"task": list(words)},
        "runtime": {"choices": {"policy": "synera", "policy/lookahead": "synera"}},
    }
    config = {"goal": goal, "seed": 5, "policy": {"offload": {"budget": 0.2}}, "exhibit": yaml.safe_load(exhibit)}
    return prepare_exhibit(OmegaConf.create(config | {"hydra": hydra}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: cost/verified_s, rel", "metric: cost, rel", "there is no metric 'cost' (cost vs cloud). There are q"),
        ("metric: cost/verified_s, relation", "metric: cost, relation", "there is no metric 'cost' (cost)"),
        ("  cloud: {quality", "  clod: {quality", "exhibit.reported: no job is the row 'small / clod'"),
        (
            "row: no_lookahead,",
            "row: no_lokahead,",
            "exhibit.claims, 'it costs less': no job is the row 'no_lokahead'. The rows are",
        ),
        ("baseline: cloud", "baseline: clod", "exhibit.claims, 'it costs less': no job is the row 'clod'"),
        (
            "relative: {row: cloud}",
            "relative: {row: clod}",
            "exhibit.columns, 'cost vs cloud': no job is the row 'clod'",
        ),
        (
            "relative: {row: cloud}",
            "relative: {row: cloud, then: {row: clod}}",
            "exhibit.columns, 'cost vs cloud': no job is the row 'clod'",
        ),
        (
            "relative: {row: cloud}",
            "relative: {groups: {small: large}}",
            "exhibit.columns, 'cost vs cloud': no group 'large'; there are ['small']",
        ),
        ("relation: below}", "relation: below, group: large}", "no group 'large'; there are ['small']"),
        ('"{variant}"', '"{varant}"', "nothing is chosen by the name 'varant'. The sweep chooses variant, pair, train"),
        (", pool_over: training.seed", "", "jobs 0 and 1 are both the row 'cloud'. Name what sets them apart"),
        ("title: A toy", "titel: A toy", "Exhibit has no option 'titel'. Its options: title, columns"),
        ("relation: below", "relation: lower", "exhibit.claims[0].relation: got 'lower'; allowed are above, below"),
        ("quality}", "quality, metric: text/rouge_1}", "text/rouge_1 (quality) compares with the texts of another row"),
        ('"{pair}"', '"{pair}", text_reference: clod', "exhibit.rows.text_reference: no job is the row 'clod'"),
        ("{name: quality}", "{name: quality, scale: much}", "exhibit.columns[0].scale: got 'much'; a number is wanted"),
        ("A toy", "${nothing.there}", "the exhibit cannot be resolved"),
        ("\nrows: {", "\nrow: {", "Exhibit has no option 'row'"),
    ],
)
def test_a_wrong_exhibit_is_refused(old: str, new: str, message: str) -> None:
    assert old in EXHIBIT
    with pytest.raises(ConfigError, match=re.escape(message)):
        asked(EXHIBIT.replace(old, new))


def test_an_exhibit_of_a_sweep_says_what_its_rows_are() -> None:
    without = re.sub("rows: .*", "", EXHIBIT)
    with pytest.raises(ConfigError, match=r"^exhibit.rows is missing"):
        asked(without)
    assert asked(without, goal="figure") is None


@pytest.mark.parametrize("word", ["+variant=no_lookahead", "training.seed=0", "+variant=cloud,no_lookahead,other"])
def test_a_sweep_on_the_command_line_may_differ_from_the_exhibits(word: str) -> None:
    assert asked(EXHIBIT, word) is not None


def test_choices_that_no_job_overrides_come_from_the_configuration() -> None:
    group = '"{pair}, {seed}, {policy/lookahead}, {policy.offload.budget}"'
    found = asked(EXHIBIT.replace('"{pair}"', group).replace("  small:", '  "small, 5, synera, 0.2":'))
    assert found is not None
    assert found.base_choices == {"seed": "5", "policy/lookahead": "synera", "policy.offload.budget": "0.2"}


def test_rows_are_not_checked_under_another_sweeper() -> None:
    assert asked(EXHIBIT.replace("  cloud: {quality", "  clod: {quality"), sweeper="x.OptunaSweeper") is not None


def test_without_an_exhibit_there_is_nothing_to_prepare() -> None:
    assert asked("null") is None
