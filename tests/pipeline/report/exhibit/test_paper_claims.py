"""The claims of the papers in conf/: complete sentences, margins declared before any run, and what decides them."""

import re
from collections import Counter

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.config.arguments import conf_dir
from tests.support.conf_files import read_yaml

LEAST_CLAIMS = {"synera": 22, "wisp": 16, "hat": 12, "hyperion": 10, "token_routing": 8}
"""Paper -> the number of different claims that its exhibits declare at least."""
FILES = {
    f"{paper}/{file.stem}": read_yaml(file)
    for paper in LEAST_CLAIMS
    for file in sorted((conf_dir() / "experiment" / paper).glob("[!_]*.yaml"))
}
EXHIBITS = {name: node["exhibit"] for name, node in FILES.items() if "exhibit" in node}
REPORTED = {
    name: [claim for claim in exhibit.get("claims", ()) if claim.get("reported")] for name, exhibit in EXHIBITS.items()
}


def swept_values(text):
    """Those of a sweeper's parameter, such as `0,1,2` or `range(10)`."""
    override = OverridesParser.create().parse_override(f"value={text}")
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [text]


SWEPT_SEEDS = {
    name: (pooled, swept_values(FILES[name]["hydra"]["sweeper"]["params"].get(pooled)))
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


def last_comparison(column):
    step = column["relative"]
    while step.get("then"):
        step = step["then"]
    return step.get("comparison", "ratio")


def wrong(problems):
    """The problems of all exhibits, each after its exhibit's name; `problems(name)` yields those of one."""
    return [f"{name}: {problem}" for name in EXHIBITS for problem in problems(name)]


@pytest.mark.parametrize("paper", LEAST_CLAIMS)
def test_a_papers_exhibits_declare_its_claims(paper):
    found = [claim for name, claims in REPORTED.items() if name.startswith(f"{paper}/") for claim in claims]
    assert len({claim["statement"] for claim in found}) >= LEAST_CLAIMS[paper]


def test_two_or_three_assumptions_decide_an_exhibits_claims():
    """docs/claims.md joins the texts with semicolons and ends with a period."""

    def problems(name):
        found = EXHIBITS[name].get("assumptions", [])
        if REPORTED[name] and not 2 <= len(found) <= 3:
            yield f"{len(found)} assumptions"
        yield from (f"ends with a period: {text}" for text in found if text.endswith("."))

    assert not wrong(problems)


def test_a_statement_stands_on_its_own_and_says_whether_the_paper_makes_it():
    def problems(name):
        for claim in declared(name):
            statement = claim["statement"]
            text = statement.removeprefix(OWN)
            if statement.startswith(OWN) is bool(claim.get("reported")):
                yield f"ours and reported, or neither: {statement}"
            if re.match(r"(and|its|it|also|both) ", text, re.IGNORECASE) or len(text.split()) <= 3:
                yield f"no sentence of its own: {statement}"

    assert not wrong(problems)


def test_equal_statements_are_one_claim_in_several_groups():
    """A row of docs/claims.md is a statement; its groups are about the same rows and the same words of the paper."""

    def problems(name):
        about = {}
        for claim in declared(name):
            own = (claim["row"], claim.get("baseline"), claim["metric"], claim.get("reported"))
            if about.setdefault(claim["statement"], own) != own:
                yield f"about {own} and {about[claim['statement']]}: {claim['statement']}"
        places = Counter((claim["statement"], claim.get("group")) for claim in declared(name))
        yield from (f"{times} times: {place}" for place, times in places.items() if times > 1)

    assert not wrong(problems)


def test_service_time_is_claimed_where_the_paper_claims_tbt():
    def problems(name):
        if any(column["name"] == SERVICE for column in EXHIBITS[name].get("columns", ())):
            compared = {sides(claim) for claim in declared(name) if claim["metric"] == SERVICE}
            yield from {sides(claim) for claim in REPORTED[name] if claim["metric"] == TBT} - compared

    assert not wrong(problems)


def test_a_ratio_is_met_within_a_quarter_of_its_effect():
    """The effect of a ratio is what it differs from 1 by; a range that the paper reports is its own margin."""

    def problems(name):
        columns = {column["name"]: column for column in EXHIBITS[name].get("columns", ())}
        for claim in REPORTED[name]:
            column = columns.get(claim["metric"], {})
            if claim["relation"] == "equal" and column.get("relative") and not RANGE.search(claim["statement"]):
                neutral = 0 if last_comparison(column) == "difference" else column.get("scale", 1)
                effect = max(abs(claim["value"] - neutral), abs(claim["value"]))
                if claim["margin"] > effect / 4 * 1.06 + 0.01 * neutral:
                    yield f"margin {claim['margin']} of an effect of {effect}: {claim['statement']}"

    assert not wrong(problems)


def test_a_sweep_pools_three_seeds():
    assert not {name: seeds for name, (pooled, seeds) in SWEPT_SEEDS.items() if len(seeds) < 3}
    assert all(pooled.endswith("seed") for pooled, _ in SWEPT_SEEDS.values())
