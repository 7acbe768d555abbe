"""The claims of the papers in conf/: complete sentences, margins declared, TBT never without service time."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[4] / "conf" / "experiment"
LEAST_CLAIMS = {"hat": 12, "hyperion": 10}
"""Paper -> the number of different claims that its exhibits declare at least."""
EXHIBITS = {
    f"{paper}/{file.stem}": yaml.safe_load(file.read_text(encoding="utf-8"))["exhibit"]
    for paper in LEAST_CLAIMS
    for file in sorted((CONF / paper).glob("[!_]*.yaml"))
}
REPORTED = {
    name: [claim for claim in exhibit.get("claims", ()) if claim.get("reported")] for name, exhibit in EXHIBITS.items()
}
OWN_MARGINS = {"A tenth of the bandwidth costs 1.7 to 3.2 s": 0.75}
"""Margins that the paper itself gives."""


def declared(name):
    return EXHIBITS[name].get("claims", ())


def sides(claim):
    return claim["row"], claim.get("baseline"), claim.get("group", "")


def quarters(claim):
    """A quarter of the effect: of the value, or of a ratio's distance from 1. Blocks and what stays have their own."""
    value = claim["value"]
    if "blocks" in claim["metric"]:
        return [1]
    return [0.01] if value == 1 else [abs(value) / 4, abs(value - 1) / 4]


@pytest.mark.parametrize("paper", LEAST_CLAIMS)
def test_a_papers_exhibits_declare_its_claims(paper):
    found = [claim for name, claims in REPORTED.items() if name.startswith(f"{paper}/") for claim in claims]
    assert len({claim["statement"] for claim in found}) >= LEAST_CLAIMS[paper]


@pytest.mark.parametrize("name", EXHIBITS)
def test_an_exhibit_with_reported_claims_names_what_decides_them(name):
    """docs/claims.md joins the texts with semicolons and ends with a period."""
    found = EXHIBITS[name].get("assumptions", [])
    assert not REPORTED[name] or 2 <= len(found) <= 3
    assert not [text for text in found if text.endswith(".")]


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_statement_stands_on_its_own(name):
    for claim in declared(name):
        statement = claim["statement"]
        assert statement[0].isupper(), statement
        assert len(statement.split()) > 4, statement
        assert statement.endswith("(ours)") is not bool(claim.get("reported")), statement


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
def test_service_time_is_claimed_beside_tbt(name):
    compared = {sides(claim) for claim in declared(name) if claim["metric"] == "service a token, ms"}
    assert {sides(claim) for claim in declared(name) if claim["metric"] == "TBT, ms"} <= compared


@pytest.mark.parametrize("name", EXHIBITS)
def test_margins_are_none_for_a_sign_and_a_quarter_for_a_size(name):
    for claim in REPORTED[name]:
        margin, statement = claim.get("margin", 0), claim["statement"]
        if claim["relation"] in ("above", "below"):
            assert margin == 0, statement
        elif claim["relation"] == "equal" and "value" in claim:
            allowed = [OWN_MARGINS[statement]] if statement in OWN_MARGINS else quarters(claim)
            assert any(margin == pytest.approx(one, rel=0.06, abs=0.002) for one in allowed), statement
