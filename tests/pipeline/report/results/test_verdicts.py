"""What decides a claim: its distance from the margin, all tests together, and the clock."""

import pytest

from pipeline.report.results.kept import KeptResult
from pipeline.report.results.verdicts import claim_key, count_not_drawn, count_reasons, count_verdicts, decide


def claim(difference=1.0, error=0.1, relation="above", **other):
    node = {
        "statement": "A is better than B", "row": "a", "baseline": "b", "metric": "m", "relation": relation,
        "margin": 0.0, "reported": "1.5 times", "status": "holds", "difference": difference,
        "low": difference - 2 * error if error else None, "high": difference + 2 * error if error else None,
        "standard_error": error,
    }  # fmt: skip
    return {key: value for key, value in (node | other).items() if value is not None}


CHIP = ("hardware/chip/rtx_a6000",)
"""A chip whose roofline has known errors."""


def result(*claims, experiment="synera/x", files=()):
    cell = {"value": 1.0, "by_replicate": {"0": 1.0, "3": 1.1, "4": 0.9}}
    rows = [{"group": group, "row": "a", "columns": {"m": {"measured": cell}}} for group in ("", "g", "h")]
    return KeptResult(experiment, {"title": "t", "rows": rows, "claims": list(claims)},
                      dict.fromkeys(files, ""), "", (), "2026-11-23", 3)  # fmt: skip


def verdict(*args, draws=None, files=(), **other):
    (found,) = decide([result(claim(*args, **other), files=files)], draws or {})
    return found.verdict


@pytest.mark.parametrize(
    ("difference", "relation", "margin", "expected"),
    [
        (1.0, "above", 0.0, "holds"),
        (1.0, "below", 0.0, "does not hold"),
        (-1.0, "below", 0.0, "holds"),
        (-2.0, "below", 1.0, "holds"),
        (-1.0, "below", 1.0, "undecided"),
        (-0.2, "below", 1.0, "does not hold"),
        (1.0, "above", 1.0, "undecided"),
        (1.0, "above", 2.0, "does not hold"),
        (0.2, "at_most", 1.0, "holds"),
        (2.0, "at_most", 1.0, "does not hold"),
        (-0.2, "at_least", 1.0, "holds"),
        (-2.0, "at_least", 1.0, "does not hold"),
        (0.0, "equal", 1.0, "holds"),
        (1.0, "equal", 1.0, "undecided"),
        (-2.0, "equal", 1.0, "does not hold"),
    ],
)
def test_a_difference_is_held_against_the_margin(difference, relation, margin, expected):
    assert verdict(difference, relation=relation, margin=margin) == expected


def test_many_tests_need_more_of_each():
    """z = 2.5 alone has p = 0.012; beside 19 others Holm asks for less than 0.0025."""
    assert verdict(0.25) == "holds"
    many = decide([result(*(claim(0.25, statement=f"claim {i}") for i in range(20)))], {})
    assert {one.verdict for one in many} == {"undecided"}


def test_three_seeds_that_differ_are_less_sure_than_their_standard_error():
    """Their mean is 3 standard errors above 0: p = 0.0027 of a normal, 0.095 of Student's t with two degrees."""
    seeds = {"0": 2.0, "3": 3.0, "4": 4.0}
    error = (1 / 3) ** 0.5
    known = decide([by_seed(seeds, claim(3 * error, error))], {})[0].tests[0]
    alone = decide([by_seed({"0": 3.0}, claim(3 * error, error))], {})[0].tests[0]
    assert (known.verdict, known.reason, alone.verdict) == ("undecided", "interval", "holds")
    assert known.p_value == pytest.approx(0.0955, abs=1e-3)
    assert known.low == pytest.approx(3 * error - 4.303 * error, abs=1e-3)
    assert alone.low == pytest.approx(error)


def test_seeds_decide_what_cannot_be_resampled():
    """A percentile has no standard error: three seeds of one sign are as sure as Student's t says, and are counted."""
    apart = decide([by_seed({"0": 1.1, "3": 1.3, "4": 1.8}, claim(0.4, error=None), dict.fromkeys("034", 1.0))], {})
    assert (apart[0].tests[0].verdict, apart[0].tests[0].reason) == ("undecided", "interval")
    near = decide([by_seed({"0": 1.39, "3": 1.4, "4": 1.41}, claim(0.4, error=None), dict.fromkeys("034", 1.0))], {})
    assert near[0].tests[0].verdict == "holds"
    assert near[0].tests[0].low == pytest.approx(0.4 - 4.303 * 0.01 / 3**0.5, rel=1e-3)
    equal = decide([by_seed(dict.fromkeys("034", 1.4), claim(0.4, error=None), dict.fromkeys("034", 1.0))], {})
    assert (equal[0].tests[0].verdict, equal[0].tests[0].p_value) == ("holds", 0.0)


def test_seeds_that_differ_as_their_baselines_do_are_as_sure():
    known = by_seed({"0": 2.0, "3": 3.0, "4": 4.0}, claim(1.0, 0.3), {"0": 1.0, "3": 2.0, "4": 3.0})
    assert decide([known], {})[0].tests[0].p_value == pytest.approx(0.00086, abs=1e-4)


def by_seed(own, node, baseline=None):
    cells = {"a": own, "b": baseline or dict.fromkeys(own, 0.0)}
    rows = [{"row": row, "columns": {"m": {"measured": {"by_replicate": cell}}}} for row, cell in cells.items()]
    return KeptResult("synera/x", {"title": "t", "rows": rows, "claims": [node]}, {}, "", (), "2026-11-26", 3)


def test_a_row_has_the_seeds_of_its_column_with_most():
    found = result(claim())
    found.exhibit["rows"][0]["columns"]["size"] = {"measured": {"value": 1.0, "by_replicate": {"": 1.0}}}
    assert decide([found], {})[0].tests[0].num_seeds == 3


def test_the_seeds_of_a_claim_are_those_of_its_group():
    found = result(claim(group="g"))
    found.exhibit["rows"][0]["columns"]["m"]["measured"] = {"value": 1.0, "by_replicate": {"": 1.0}}
    assert decide([found], {})[0].tests[0].num_seeds == 3


def test_a_claim_of_ours_is_no_claim_of_the_paper():
    found = result(claim(reported=""), claim(statement="reported"))
    assert [one.statement for one in decide([found], {})] == ["reported"]
    assert [one.statement for one in decide([found], {}, ours=True)] == ["A is better than B"]


def test_claims_of_ours_are_a_family_of_their_own():
    """A test that would not stand among the papers' twenty stands alone."""
    found = result(claim(0.25, reported=""), *(claim(0.25, statement=f"claim {i}") for i in range(20)))
    assert [one.verdict for one in decide([found], {}, ours=True)] == ["holds"]


def test_one_statement_about_two_metrics_is_two_claims():
    found = decide([result(claim(), claim(metric="other"))], {})
    assert [one.node["metric"] for one in found] == ["m", "other"]


def test_a_claim_s_key_names_its_rows():
    changes = ({}, {"row": "c"}, {"baseline": "c"}, {"metric": "n"}, {"group": "g"})
    assert len({claim_key(claim(**change)) for change in changes}) == 5


def test_groups_merge_and_say_where_a_claim_holds():
    (found,) = decide([result(claim(1.0, group="g"), claim(-1.0, group="h", status="does not hold"))], {})
    assert found.verdict == "depends"
    assert (found.groups("holds"), found.groups("does not hold")) == (["g"], ["h"])
    assert dict(count_verdicts([found])) == {"depends": 1}


@pytest.mark.parametrize("other", [{}, {"error": None, "status": "not evaluated"}])
def test_a_claim_that_fails_in_no_group_holds_in_part(other):
    (found,) = decide([result(claim(1.0, group="g"), claim(0.0, group="h", **other))], {})
    assert found.verdict == "holds in part"


@pytest.mark.parametrize(
    ("number", "difference", "error", "share", "reason"),
    [
        (1, 0.1, 0.1, None, "interval"),
        (20, 0.25, 0.1, 1.0, "Holm"),
        (1, 1.0, 0.1, 0.5, "clock"),
        (1, 1.0, 0.1, 1.0, ""),
        (1, 0.1, 0.1, 0.5, "interval"),
        (1, 1.0, 0.1, None, "clock not drawn"),
        (1, -1.0, 0.1, None, "clock not drawn"),
        (1, 0.1, None, None, "within the margin"),
    ],
)
def test_an_undecided_claim_has_its_reason(number, difference, error, share, reason):
    status = "inconclusive" if error is None else "holds"
    nodes = [claim(difference, error, statement=f"claim {i}", status=status) for i in range(number)]
    draws = {"synera/x": {claim_key(node): share for node in nodes}} if share is not None else {}
    found = decide([result(*nodes, files=CHIP)], draws)
    assert {test.reason for one in found for test in one.tests} == {reason}
    assert dict(count_reasons(found)) == ({reason: number} if reason else {})


def test_reasons_are_those_of_undecided_claims_alone():
    found = decide([result(claim(0.0, group="g"), claim(-1.0, group="h", status="does not hold"))], {})
    assert [one.verdict for one in found] == ["does not hold"]
    assert dict(count_reasons(found)) == {}


def test_a_claim_that_holds_in_no_group_and_fails_in_one_does_not_hold():
    (found,) = decide([result(claim(0.0, group="g"), claim(-1.0, group="h", status="does not hold"))], {})
    assert (found.groups("undecided"), found.groups("does not hold")) == (["g"], ["h"])
    assert found.verdict == "does not hold"


def test_without_an_interval_the_values_decide_and_no_test_is_counted():
    (found,) = decide([result(claim(error=None, status="holds"))], {})
    assert (found.verdict, found.tests[0].p_value, found.tests[0].num_seeds) == ("holds", None, 3)
    assert verdict(error=None, status="inconclusive") == "undecided"
    assert verdict(error=None, difference=None, status="not evaluated") == "not run"


def test_equal_values_in_every_resample_are_decided_by_their_status():
    assert verdict(0.0, 0.0, relation="at_most", status="holds") == "holds"
    assert verdict(0.0, 0.0, status="does not hold") == "does not hold"
    assert verdict(0.0, 0.0, status="inconclusive") == "undecided"


@pytest.mark.parametrize(("share", "expected"), [(0.95, "holds"), (0.94, "undecided"), (1.0, "holds")])
def test_a_claim_holds_only_if_the_clock_s_error_does_not_turn_it(share, expected):
    draws = {"synera/x": {claim_key(claim()): share}}
    assert verdict(draws=draws, files=CHIP) == expected


def test_a_capacity_on_a_chip_without_measured_batches_is_undecided():
    found = result(claim(group="g"), claim(group="h"))
    found.exhibit["unmeasured_batches"] = ["g"]
    (one,) = decide([found], {})
    assert [(test.group, test.verdict) for test in one.tests] == [("g", "undecided"), ("h", "holds")]
    assert one.tests[0].reason == "batches unmeasured"


def test_a_claim_that_was_not_run_lacks_no_batches():
    found = result(claim(error=None, difference=None, status="not evaluated", group="g"))
    found.exhibit["unmeasured_batches"] = ["g"]
    (one,) = decide([found], {})
    assert (one.verdict, one.tests[0].reason) == ("not run", "")


def test_nor_is_a_claim_refuted_that_the_clock_may_turn():
    node = {"relation": "below", "status": "does not hold"}
    key = claim_key(claim(**node))
    assert verdict(draws={"synera/x": {key: 0.04}}, files=CHIP, **node) == "does not hold"
    assert verdict(draws={"synera/x": {key: 0.3}}, files=CHIP, **node) == "undecided"


@pytest.mark.parametrize(("metric", "files"), [("quality/mean", CHIP), ("latency/tbt_s/mean", ())])
def test_what_rests_on_no_clock_is_decided_whatever_was_drawn(metric, files):
    """Tokens and texts alone, or no chip model: a share of draws, of fewer prompts, decides nothing."""
    node = claim(metric=metric)
    for draws in ({}, {"synera/x": {claim_key(node): 0.5}}):
        (found,) = decide([result(node, files=files)], draws)
        assert (found.verdict, found.tests[0].clock_share) == ("holds", None)


def test_claims_that_wait_for_draws_are_counted():
    """Two tests of one claim wait; one claim was drawn, and one is undecided by its interval."""
    drawn, waiting = claim(statement="drawn"), [claim(statement="waits", group=group) for group in ("g", "h")]
    nodes = [drawn, *waiting, claim(0.1, statement="unclear")]
    found = decide([result(*nodes, files=CHIP)], {"synera/x": {claim_key(drawn): 1.0}})
    assert count_not_drawn(found) == (2, 1)
    assert {one.statement: one.verdict for one in found} == {
        "drawn": "holds", "waits": "undecided", "unclear": "undecided",
    }  # fmt: skip


def test_a_capacity_without_measured_batches_is_that_before_it_is_drawn():
    node = claim(group="g", metric="latency/verification_s/mean")
    (found,) = decide([result(node, experiment="synera/fig15", files=CHIP)], {"synera/fig15": {claim_key(node): 1.0}})
    assert (found.verdict, found.tests[0].reason) == ("undecided", "batches unmeasured")


@pytest.mark.parametrize("change", [{"value": 50.0}, {"margin": 0.5}, {"reported": "twice"}, {"relation": "below"}])
def test_another_number_in_another_group_is_another_claim(change):
    found = decide([result(claim(group="g"), claim(group="h", **change))], {})
    assert [len(one.tests) for one in found] == [1, 1]
