"""The claims of the papers in conf/experiment: plain statements, seeds to judge them by, and what decides them."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[4] / "conf" / "experiment"
LEAST = {"synera": 22}
"""Claims of each paper that stand in docs/claims.md, at least."""
EXHIBITS = {
    file.relative_to(CONF).with_suffix("").as_posix(): node
    for paper in LEAST
    for file in sorted((CONF / paper).glob("*.yaml"))
    if "exhibit" in (node := yaml.safe_load(file.read_text(encoding="utf-8")))
}
REPORTED = {
    name: claims
    for name, node in EXHIBITS.items()
    if (claims := [claim for claim in node["exhibit"].get("claims", ()) if claim.get("reported")])
}
SWEPT = [name for name, node in EXHIBITS.items() if "rows" in node["exhibit"]]
SEED = "seed"


@pytest.mark.parametrize("paper", LEAST)
def test_a_paper_s_claims_are_declared(paper):
    assert sum(len(claims) for name, claims in REPORTED.items() if name.startswith(f"{paper}/")) >= LEAST[paper]


@pytest.mark.parametrize("name", REPORTED)
def test_two_or_three_assumptions_decide_an_exhibit_s_claims(name):
    assert 2 <= len(EXHIBITS[name]["exhibit"]["assumptions"]) <= 3


@pytest.mark.parametrize("name", REPORTED)
def test_a_statement_stands_alone(name):
    for claim in REPORTED[name]:
        assert not re.match(r"(and|its|it|also|both) |ours", claim["statement"], re.IGNORECASE), claim["statement"]
        assert claim["statement"][0].isupper() or claim["statement"][0].isdigit(), claim["statement"]


@pytest.mark.parametrize("name", REPORTED)
def test_a_statement_is_one_claim_about_one_row_and_metric(name):
    """Groups merge into one verdict; another row, baseline or metric is another claim."""
    parts = ("statement", "row", "baseline", "metric", "value", "relation", "margin", "reported")
    found = {tuple(claim.get(part) for part in parts) for claim in REPORTED[name]}
    assert [text for text, times in Counter(one[0] for one in found).items() if times > 1] == []


@pytest.mark.parametrize("name", SWEPT)
def test_a_sweep_pools_three_seeds(name):
    pooled = EXHIBITS[name]["exhibit"]["rows"].get("pool_over", "")
    assert pooled.endswith(SEED)
    assert len(str(EXHIBITS[name]["hydra"]["sweeper"]["params"][pooled]).split(",")) == 3
