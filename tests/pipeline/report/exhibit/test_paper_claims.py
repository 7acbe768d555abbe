"""The claims of the papers in conf/: complete sentences, margins declared before any run, and what decides them."""

import re
from collections import Counter

import pytest
import yaml

from pipeline.config.arguments import conf_dir

LEAST_CLAIMS = {"synera": 22, "wisp": 16, "hat": 12, "hyperion": 10, "token_routing": 8}
"""Paper -> the number of different claims that its exhibits declare at least."""
FILES = {
    f"{paper}/{file.stem}": yaml.safe_load(file.read_text(encoding="utf-8"))
    for paper in LEAST_CLAIMS
    for file in sorted((conf_dir() / "experiment" / paper).glob("[!_]*.yaml"))
}
EXHIBITS = {name: node["exhibit"] for name, node in FILES.items() if "exhibit" in node}
REPORTED = {
    name: [claim for claim in exhibit.get("claims", ()) if claim.get("reported")] for name, exhibit in EXHIBITS.items()
}
SWEPT_SEEDS = {
    name: (pooled, str(FILES[name]["hydra"]["sweeper"]["params"].get(pooled)).split(","))
    for name, exhibit in EXHIBITS.items()
    if (pooled := exhibit.get("rows", {}).get("pool_over")) and "params" in FILES[name]["hydra"].get("sweeper", {})
}
OWN = "ours: "
RANGE = re.compile(r"\d to \d")
TBT, SERVICE = "TBT, ms", "service a token, ms"


def declared(name):
    return EXHIBITS[name].get("claims", ())


def sides(claim):
    return claim["row"], claim.get("baseline")


@pytest.mark.parametrize("paper", LEAST_CLAIMS)
def test_a_papers_exhibits_declare_its_claims(paper):
    found = [claim for name, claims in REPORTED.items() if name.startswith(f"{paper}/") for claim in claims]
    assert len({claim["statement"] for claim in found}) >= LEAST_CLAIMS[paper]


@pytest.mark.parametrize("name", EXHIBITS)
def test_two_or_three_assumptions_decide_an_exhibits_claims(name):
    """docs/claims.md joins the texts with semicolons and ends with a period."""
    found = EXHIBITS[name].get("assumptions", [])
    assert not REPORTED[name] or 2 <= len(found) <= 3
    assert not [text for text in found if text.endswith(".")]


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_statement_stands_on_its_own_and_says_whether_the_paper_makes_it(name):
    for claim in declared(name):
        statement = claim["statement"]
        assert statement.startswith(OWN) is not bool(claim.get("reported")), statement
        text = statement.removeprefix(OWN)
        assert not re.match(r"(and|its|it|also|both) ", text, re.IGNORECASE), statement
        assert len(text.split()) > 3, statement


@pytest.mark.parametrize("name", EXHIBITS)
def test_equal_statements_are_one_claim_in_several_groups(name):
    """A row of docs/claims.md is a statement; its groups are about the same rows and the same words of the paper."""
    about = {}
    for claim in declared(name):
        own = (claim["row"], claim.get("baseline"), claim["metric"], claim.get("reported"))
        assert about.setdefault(claim["statement"], own) == own
    places = Counter((claim["statement"], claim.get("group")) for claim in declared(name))
    assert max(places.values(), default=1) == 1


@pytest.mark.parametrize("name", EXHIBITS)
def test_service_time_is_claimed_where_the_paper_claims_tbt(name):
    compared = {sides(claim) for claim in declared(name) if claim["metric"] == SERVICE}
    if any(column["name"] == SERVICE for column in EXHIBITS[name].get("columns", ())):
        assert {sides(claim) for claim in REPORTED[name] if claim["metric"] == TBT} <= compared


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_ratio_is_met_within_a_quarter_of_its_effect(name):
    """The effect of a ratio is what it differs from 1 by; a range that the paper reports is its own margin."""
    columns = {column["name"]: column for column in EXHIBITS[name].get("columns", ())}
    for claim in REPORTED[name]:
        column = columns.get(claim["metric"], {})
        if claim["relation"] == "equal" and column.get("relative") and not RANGE.search(claim["statement"]):
            neutral = 0 if column["relative"].get("comparison") == "difference" else column.get("scale", 1)
            effect = max(abs(claim["value"] - neutral), abs(claim["value"]))
            assert claim["margin"] <= effect / 4 * 1.06 + 0.01 * neutral, claim


@pytest.mark.parametrize("name", SWEPT_SEEDS)
def test_a_sweep_pools_three_seeds(name):
    pooled, seeds = SWEPT_SEEDS[name]
    assert pooled.endswith("seed")
    assert len(seeds) >= 3
