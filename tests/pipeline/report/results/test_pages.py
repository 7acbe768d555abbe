"""Tables of docs and the page of claims are what the kept results say."""

from dataclasses import replace

import pytest

from pipeline.report.results.claims_page import CLAIMS_PAGE, claims_page
from pipeline.report.results.kept import KeptResult
from pipeline.report.results.pages import MarkError, marked_results, written_page
from pipeline.report.results.verdicts import claim_key, decide
from tests.pipeline.report.results.test_verdicts import claim

PAGE = """before
<!-- result: synera/x
columns: TBT, ms
rows: a
-->
old text
<!-- end of result -->
after
"""


def cell(value, **other):
    return {
        "measured": {"value": value, "low": value - 0.5, "high": value + 0.5, "by_replicate": {"0": 1, "3": 2}},
        **other,
    }


def kept(claims=(), **other):
    rows = [
        {
            "row": name,
            "requests": 840,
            "prompts": 420,
            "columns": {"TBT, ms": cell(20.0, reported=31.5), "q": cell(1.0)},
        }
        for name in ("a", "b")
    ]
    exhibit = {"title": "Fig. 1: speed", "rows": rows, "claims": list(claims), "assumptions": ["the link", "the pair"]}
    return KeptResult("synera/x", exhibit, {}, pages_digest(), ("abcdef1234",), "2026-11-23", 4, **other)


def pages_digest():
    from pipeline.config import sources

    return sources.exhibit_digest([])


def page_of(result, shares=None):
    """The page of the claims of one result; `shares`: those of the clock's draws, by the claim's key."""
    return claims_page(decide([result], {"synera/x": shares or {}}), {"synera/x": result}, {})


def with_seeds(result, *numbers):
    """The result with so many seeds in each of its rows."""
    for row, number in zip(result.exhibit["rows"], numbers, strict=True):
        for column in row["columns"].values():
            column["measured"]["by_replicate"] = {str(seed): 1 for seed in range(number)}
    return result


def test_a_marked_table_is_written_anew_and_the_rest_is_left():
    text = written_page(PAGE, {"synera/x": kept()}, "page.md")
    assert text.startswith("before\n<!-- result: synera/x\n")
    assert text.endswith("<!-- end of result -->\nafter\n")
    assert "old text" not in text
    assert "|  | TBT, ms |\n|---|---:|\n| a | 20.0 [19.5, 20.5] (reported 31.5) |\n\n" in text
    assert (
        "840 requests a row, 420 different prompts a seed; seeds 0, 3; `python -m pipeline +experiment=synera/x`"
        in text
    )
    assert "revision abcdef1." in text
    assert "Not run again" not in text
    assert written_page(text, {"synera/x": kept()}, "page.md") == text
    assert marked_results(text) == ["synera/x"]


def test_a_number_without_seeds_adds_none_and_an_exhibit_may_claim_nothing():
    result = kept()
    result.exhibit["rows"][0]["columns"]["q"] = {"measured": {"value": 30.0, "by_replicate": {"": 30.0}}}
    del result.exhibit["claims"]
    text = written_page(PAGE.replace("columns: TBT, ms\n", ""), {"synera/x": result}, "page.md")
    assert "seeds 0, 3; " in text
    assert decide([result], {}) == []


def test_what_a_table_rests_on_are_its_largest_row_and_several_seeds():
    result = with_seeds(kept(), 1, 1)
    result.exhibit["rows"][1] |= {"requests": 420, "prompts": 210}
    text = written_page(PAGE, {"synera/x": result}, "page.md")
    assert "840 requests a row, 420 different prompts a seed; `python" in text


def test_a_table_with_one_interval_says_which():
    result = kept()
    result.exhibit["rows"][1]["columns"]["q"] = {"measured": {"value": 1.5}}
    assert "Intervals: 95 %." in written_page(PAGE, {"synera/x": result}, "page.md")


def test_nothing_is_not_minus_nothing():
    result = kept()
    result.exhibit["rows"][0]["columns"]["q"] = {"measured": {"value": -1e-12, "low": -0.5, "high": 0.5}}
    text = written_page(PAGE.replace("TBT, ms", "q"), {"synera/x": result}, "page.md")
    assert "| a | 0.000 [-0.500, 0.500] |" in text


def test_groups_may_be_columns():
    result = kept()
    for row, group in zip(result.exhibit["rows"], ("g", "h"), strict=True):
        row |= {"row": "a", "group": group}
    text = written_page(PAGE.replace("rows: a", "spread: groups"), {"synera/x": result}, "page.md")
    cells = "20.0 [19.5, 20.5] (reported 31.5)"
    assert f"| TBT, ms | g | h |\n|---|---:|---:|\n| a | {cells} | {cells} |\n" in text


def test_a_label_without_a_group_s_row_has_a_dash_there():
    result = kept()
    for row, place in zip(result.exhibit["rows"], (("a", "g"), ("b", "h")), strict=True):
        row |= dict(zip(("row", "group"), place, strict=True))
    text = written_page(PAGE.replace("rows: a", "spread: groups"), {"synera/x": result}, "page.md")
    assert "| a | 20.0 [19.5, 20.5] (reported 31.5) | - |" in text


def test_the_column_of_groups_may_be_left_out():
    result = kept()
    for row in result.exhibit["rows"]:
        row["group"] = "g"
    text = written_page(PAGE, {"synera/x": result}, "page.md")
    assert "| group |  | TBT, ms |" in text
    assert "| g | a | 20.0" in text
    hidden = written_page(PAGE.replace("rows: a", "rows: a\nhide: groups"), {"synera/x": result}, "page.md")
    assert "\n|  | TBT, ms |\n|---|---:|\n| a | 20.0" in hidden


def test_a_column_of_whole_numbers_without_intervals_is_one_of_counts():
    """One number that is not whole, or an interval, makes it a column of measurements."""
    result = kept()
    first, second = (row["columns"] for row in result.exhibit["rows"])
    for name, values in (("blocks", (5.0, 1200.0)), ("times", (1.0, 1.5))):
        for columns, value in zip((first, second), values, strict=True):
            columns[name] = {"measured": {"value": value, "by_replicate": {"": value}}, "reported": 7}
    page = PAGE.replace("columns: TBT, ms\nrows: a", "columns: blocks; times; q")
    text = written_page(page, {"synera/x": result}, "page.md")
    assert "| a | 5 (reported 7) | 1.00 (reported 7) | 1.00 [0.50, 1.50] |" in text
    assert "| b | 1,200 (reported 7) | 1.50 (reported 7) |" in text


def test_without_a_result_the_table_says_which_command_makes_it():
    assert "No result is kept: `python -m pipeline +experiment=synera/x`." in written_page(PAGE, {}, "page.md")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TBT, ms", "speed"),
        ("rows: a", "rows: z"),
        ("rows: a", "rows: a; z"),
        ("rows: a", "groups: z"),
        ("columns: TBT, ms", "spread: groups"),
        ("rows: a", "lines: a"),
        ("rows: a", "spread: rows"),
        ("rows: a", "hide: rows"),
    ],
)
def test_a_mark_that_names_what_is_not_there_is_an_error(old, new):
    with pytest.raises(MarkError):
        written_page(PAGE.replace(old, new), {"synera/x": kept()}, "page.md")


def test_a_result_of_another_configuration_says_what_has_changed():
    stale = KeptResult("synera/x", kept().exhibit, {"no/such": "0" * 12}, "", (), "2026-11-23", 4)
    assert "**Not run again since: conf/no/such.yaml is gone.**" in written_page(PAGE, {"synera/x": stale}, "page.md")


def test_the_page_of_claims_has_counts_headlines_tables_and_what_waits():
    node = claim(statement="Synera is faster", headline=True)
    result = kept([node, claim(-1.0, statement="and smaller", status="does not hold")])
    waiting = {"wisp/table2": {"WISP carries more": "86 against 41", "and more": "twice"}}
    text = claims_page(decide([result], {}), {"synera/x": result}, waiting)
    assert "4 claims: 1 holds, 1 does not hold, 2 not run." in text
    assert "| Synera | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "| Synera | Synera is faster | 1.5 times | above | +1.00 [+0.80, +1.20] | - | **holds** |" in text
    assert "| WISP | 0 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "### Fig. 1: speed" in text
    assert "Decided by: the link; the pair." in text
    assert "### Not run on today's clock: `python -m pipeline +experiment=wisp/table2`" in text
    assert "| WISP carries more | 86 against 41 |" in text


def test_claims_on_real_text_stand_before_the_papers_with_their_own_counts():
    paper, real = kept([claim()]), kept([claim(statement="ours: drafts keep the text", reported="")])
    results = {"synera/x": paper, "real/x": replace(real, experiment="real/x")}
    on_real_text = decide([results["real/x"]], {}, ours=True)
    text = claims_page(decide([paper], {}), results, {}, on_real_text)
    assert "runs. 1 claims: 1 holds.\nHolm's correction is over these alone. None of them waits for draws." in text
    assert "| claim | asked | ours | clock | verdict |" in text
    assert "| drafts keep the text | above | +1.00 [+0.80, +1.20] | - | **holds** |" in text
    assert text.index("on real text") < text.index("## Synera")


def test_ours_stand_beside_the_papers_claims_with_their_own_counts():
    """Below the headline stand those about the same row beside the same one; each exhibit has a table of all."""
    nodes = [
        claim(statement="Synera is faster", headline=True),
        claim(statement="ours: faster in service time", reported=""),
        claim(statement="ours: another row's", reported="", row="b", baseline="a"),
    ]
    result = kept(nodes)
    text = claims_page(decide([result], {}), {"synera/x": result}, {}, beside=decide([result], {}, ours=True))
    assert "2 claims: 2 holds.\n  Holm's correction is over these alone. None of them waits for draws." in text
    assert "| ours | faster in service time |  | above | +1.00 [+0.80, +1.20] | - | **holds** |" in text
    assert "| ours | another row's |" not in text
    assert "\nOurs beside them:\n\n| claim | asked | ours | clock | verdict |" in text
    assert "\n| another row's | above | +1.00 [+0.80, +1.20] | - | **holds** |" in text


def test_an_exhibit_with_claims_of_ours_alone_has_its_table():
    result = kept([claim(statement="ours: faster", reported="")])
    text = claims_page((), {"synera/x": result}, {}, beside=decide([result], {}, ours=True))
    assert "### Fig. 1: speed\n\nOurs:\n\n| claim | asked | ours | clock | verdict |" in text


@pytest.mark.parametrize(
    ("metric", "other", "shown"),
    [
        ("TBT of edge, %", "service of edge, %", True),
        ("TBT of edge, %", "service of Hybrid, %", False),
        ("speed", "TBT", False),  # numbers by themselves
    ],
)
def test_relative_columns_stand_beside_each_other_where_they_are_relative_to_the_same_row(metric, other, shown):
    nodes = [claim(value=1.0, baseline=None, metric=metric, headline=True),
             claim(value=1.0, baseline=None, metric=other, reported="", statement="ours: so")]  # fmt: skip
    result = kept(nodes)
    text = claims_page(decide([result], {}), {"synera/x": result}, {}, beside=decide([result], {}, ours=True))
    assert ("| ours | so |" in text) == shown


def test_a_hypothetical_row_is_named_below_its_table():
    result = kept()
    result.exhibit["rows"][0]["hypothetical"] = "hypothetical: another share of its target's weights"
    text = written_page(PAGE, {"synera/x": result}, "page.md")
    assert "\n\na: hypothetical: another share of its target's weights.\nIntervals" in text


def test_a_result_of_a_changed_checkout_says_so():
    result = replace(kept(), revisions=("abcdef123-dirty", "abcdef123"))
    text = written_page(PAGE, {"synera/x": result}, "page.md")
    assert "revision abcdef1 with changes that were not committed, abcdef1." in text


@pytest.mark.parametrize(
    ("node", "cells"),
    [
        (claim(0.05), "| above | +0.050 [-0.150, +0.250] | - | **undecided** (interval) |"),
        (claim(0.5, relation="at_most", margin=0.2),
         "| at most 0.2 | +0.500 [+0.300, +0.700] | - | **does not hold** |"),
        (claim(1.0, value=2.0, baseline=None, relation="equal", margin=0.25),
         "| within 0.25 | 3.00 [2.80, 3.20] | - | **does not hold** (above) |"),
        (claim(-1.0, value=2.0, baseline=None, relation="equal", margin=0.25),
         "| within 0.25 | 1.00 [0.80, 1.20] | - | **does not hold** (below) |"),
        (claim(error=None, low=0.5, high=1.5), "| above | +1.00 (no interval) | - | **holds** |"),
    ],
)  # fmt: skip
def test_a_line_says_what_was_asked_and_why_a_claim_stands_as_it_does(node, cells):
    assert cells in page_of(kept([node]))


def test_a_bar_in_a_text_ends_no_cell():
    assert "| a \\| b |" in page_of(kept([claim(statement="a | b")]))


def test_a_claim_about_a_number_shows_the_rows_own():
    result = kept([claim(-0.25, value=2.0, baseline=None, relation="equal", margin=0.25, low=-0.5, high=0.0)])
    assert "| 1.75 [1.50, 2.00] |" in page_of(result)


def test_many_groups_of_a_claim_about_a_number_show_the_rows_own():
    result = kept([claim(float(i), value=10.0, baseline=None, group=f"g{i}") for i in range(4)])
    assert "10.0 to 13.0 in 4 groups" in page_of(result)


@pytest.mark.parametrize(("number", "shown"), [(3, "g0: +1.00"), (4, "+1.00 to +4.00 in 4 groups")])
def test_three_groups_are_shown_one_by_one(number, shown):
    assert shown in page_of(kept([claim(i + 1.0, group=f"g{i}") for i in range(number)]))


def test_three_groups_of_a_verdict_are_named():
    nodes = [claim(i + 1.0, group=f"g{i}") for i in range(3)] + [claim(-1.0, group="last", status="does not hold")]
    assert "holds for g0, g1, g2" in page_of(kept(nodes))


def test_many_groups_are_a_range_and_a_verdict_names_few():
    nodes = [claim(i + 1.0, group=f"g{i}") for i in range(5)] + [claim(-1.0, group="last", status="does not hold")]
    text = page_of(kept(nodes))
    assert "-1.00 to +5.00 in 6 groups" in text
    assert "**depends** (one seed): does not hold for last; holds for 5 groups" in text
    assert CLAIMS_PAGE == "claims.md"


@pytest.mark.parametrize(
    ("experiment", "label"), [("synera/x", " (one seed)"), ("wisp/fig9", " (one profile)"), ("hat/fig1c", "")]
)
def test_what_could_differ_in_another_run_and_was_not_repeated_is_labelled(experiment, label):
    result = replace(kept([claim()]), experiment=experiment)
    for row in result.exhibit["rows"]:
        row["columns"]["q"]["measured"]["by_replicate"] = row["columns"]["TBT, ms"]["measured"]["by_replicate"] = {
            "": 1
        }
    text = claims_page(decide([result], {}), {experiment: result}, {})
    assert f"| **holds**{label} |" in text


def test_a_claim_with_one_seed_in_one_group_was_not_repeated():
    result = with_seeds(kept([claim(group="g"), claim(group="h")]), 3, 1)
    for row, group in zip(result.exhibit["rows"], "gh", strict=True):
        row |= {"row": "a", "group": group}
    assert "| **holds** (one seed) |" in page_of(result)


def test_the_page_says_how_many_claims_wait_for_draws_of_the_clock():
    result = replace(kept([claim(), claim(0.1, statement="unclear")]), files={"hardware/chip/rtx_a6000": ""})
    text = page_of(result)
    assert "| **undecided** (clock not drawn) |" in text
    assert "have several: 1 interval, 1 clock not drawn." in text
    assert "1 tests of 1 claims are decided by" in text
    assert "None of them waits" not in text
    drawn = page_of(result, {claim_key(result.exhibit["claims"][0]): 1.0})
    assert "Drawn for 1 claims. None of them waits for draws." in drawn


def test_the_clock_s_shares_are_from_least_to_most():
    nodes = [claim(group="g"), claim(group="h"), claim(statement="one")]
    shares = dict(zip(map(claim_key, nodes), (1.0, 0.955, 0.96), strict=True))
    text = page_of(replace(kept(nodes), files={"hardware/chip/rtx_a6000": ""}), shares)
    assert "| 96 % to 100 % |" in text
    assert "| 96 % |" in text
    assert "Drawn for 2 claims." in text


def test_a_claim_that_was_drawn_in_one_group_counts_as_drawn():
    nodes = [claim(group="g"), claim(group="h")]
    result = replace(kept(nodes), files={"hardware/chip/rtx_a6000": ""})
    assert "Drawn for 1 claims." in page_of(result, {claim_key(nodes[0]): 1.0})


def test_a_line_of_a_mark_without_a_colon_is_refused():
    with pytest.raises(MarkError, match="has the line 'rows a'; NAME: VALUES is wanted"):
        written_page(PAGE.replace("rows: a", "rows a"), {"synera/x": kept()}, "page.md")


def former_sentence(former):
    """What the head of the page says of draws of a former rule, where the claims of groups g and h were drawn and those
    of the groups `former` are of such a rule.
    """
    nodes = [claim(group=group) for group in ("g", "h")]
    result = replace(kept(nodes), files={"hardware/chip/rtx_a6000": ""})
    decided = decide([result], {"synera/x": {claim_key(node): 1.0 for node in nodes}})
    names = {"synera/x": {claim_key(node) for node in nodes if node["group"] in former}}
    head = claims_page(decided, {"synera/x": result}, {}, former=names).partition("One seed")[0]
    return [line.strip() for line in head.splitlines() if "former rule" in line]


def test_the_page_says_how_many_claims_rest_on_draws_of_a_former_rule():
    expected = "1 claim rests on draws of a former rule ([clock.md](clock.md#draws)): synera/x."
    assert former_sentence(["h"]) == former_sentence(["g", "h"]) == [expected]
    assert former_sentence([]) == []
