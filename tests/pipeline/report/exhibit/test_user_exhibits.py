"""Exhibits and variants of a user's configuration folder, through the command line."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pipeline.command.main import main

EXPERIMENT = """
# @package _global_
# Synera with and without parallel inference, beside the cloud alone.
defaults:
  - override /policy: synera
  - override /model: toy
  - override /workload: smoke
  - override /network: mbps_10
  - _self_
workload: {num_prompts: 5}
exhibit:
  _target_: pipeline.report.exhibit.Exhibit
  title: A toy
  columns:
    - {name: quality}
    - {name: "cost vs cloud", metric: cost/verified_s, relative: {row: cloud}}
  rows: {label: "{variant}", group: "{pair}", pool_over: training.seed}
  reported:
    small:
      cloud: {quality: 0.7}
  claims:
    - {statement: it costs less, row: no_lookahead, baseline: cloud, metric: cost/verified_s, relation: below}
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      +variant: cloud,no_lookahead
      +pair: small
      training.seed: 0,3
"""
VARIANTS = {
    "variant/cloud": "# @package _global_\ndefaults:\n  - override /policy: cloud_centric\n",
    "variant/no_lookahead": """
# @package _global_
defaults:
  - override /policy/lookahead: none
  - override /network: lte
  - _self_
workload: {num_prompts: 3}
""",
    "pair/small": "# @package _global_\nseed: 9\n",
}


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Plans the jobs of the experiment, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydra._internal.logging_config.configure_logging", lambda config: None)
    for name, text in {"experiment/mine": EXPERIMENT, **VARIANTS}.items():
        file = tmp_path / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip())

    def say(*words: str) -> Said:
        monkeypatch.setattr(
            sys, "argv", ["pipeline", "--config-dir=conf", "+experiment=mine", "stage=plan", "report=full", *words]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return say


def jobs(tmp_path: Path) -> list[dict[str, object]]:
    """The configuration of every job of the sweep."""
    files = sorted((tmp_path / "outputs" / "sweeps").glob("*/*/*/.hydra/config.yaml"))
    return [yaml.safe_load(file.read_text()) for file in files]


def test_a_variant_overrides_its_experiment(say, tmp_path):
    said = say()
    assert said.code == 0, said.err
    found = jobs(tmp_path)
    assert [job["policy"]["name"] for job in found] == ["cloud_centric"] * 2 + ["synera"] * 2
    assert [job["workload"]["num_prompts"] for job in found] == [5, 5, 3, 3]
    assert [job["network"]["uplink_mbps"] for job in found] == [10, 10, 3.9, 3.9]
    assert found[2]["policy"]["lookahead"]["_target_"].endswith("NoLookahead")
    assert {job["seed"] for job in found} == {9}
    assert [job["training"]["seed"] for job in found] == [0, 3, 0, 3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: cost/verified_s, relation", "metric: cost, relation", "there is no metric 'cost' (cost)"),
        ("relation: below", "relation: equal", "'it costs less' wants `equal`; say within which `margin`"),
    ],
)
def test_a_wrong_exhibit_is_refused_before_any_job(say, tmp_path, old, new, message):
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.write_text(file.read_text().replace(old, new))
    said = say()
    assert said.code == 2, said
    assert message in said.err
    assert "Traceback" not in said.err
    assert jobs(tmp_path) == []
