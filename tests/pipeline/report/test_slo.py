from math import inf

import pytest

from pipeline.report.records import Records, RequestRecord
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import request, write


def row(**changes):
    """Three tokens, seen at 1, 1.5 and 2 s: two gaps in one second."""
    return request("r", ["device"] * 3, [1.0, 1.5, 2.0], **changes)


def served(**changes):
    return RequestRecord(**row(**changes))


def test_the_speed_counts_gaps_from_the_first_token_on():
    assert served().tokens_per_s == 2.0


def test_one_token_has_no_speed_from_itself_on_and_one_from_the_request_on():
    lone = RequestRecord(**request("r", ["cloud"], [4.0]))
    assert (lone.tokens_per_s, lone.promised_tokens_per_s) == (inf, 0.25)


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"ending": "failed"}, False),
        ({"slo": "fast", "slo_tokens_per_s": 1.5}, True),
        ({"slo": "fast", "slo_tokens_per_s": 1.6}, False),
        ({"slo": "fast", "slo_tokens_per_s": 2.0, "slo_ttft_s": 1.0}, True),
        ({"slo": "fast", "slo_tokens_per_s": 2.1, "slo_ttft_s": 1.0}, False),
        ({"slo": "fast", "slo_tokens_per_s": 1.0, "slo_ttft_s": 0.9}, False),
        ({"slo": "fast", "slo_tokens_per_s": 1.0, "slo_ttft_s": 1.0}, True),
        ({"slo": "fast", "slo_ttft_s": 1.0, "ttft_s": None}, False),
    ],
    ids=[
        "no class",
        "failed",
        "as fast as promised",
        "too slow",
        "fast once it began",
        "slow once it began",
        "first token late",
        "in time",
        "no token at all",
    ],
)
def test_a_request_meets_its_slo_by_speed_and_ttft(changes, met):
    found = served(**changes)
    assert found.meets_slo is met
    assert found.slo_violated is (None if found.slo is None else not met)


def test_violations_are_counted_by_class(tmp_path):
    fast, slow = {"slo": "fast", "slo_tokens_per_s": 8.0}, {"slo": "slow", "slo_tokens_per_s": 1.5}
    rows = [row(**fast), row(**slow), row(**slow), row(**slow, ending="failed"), row()]
    assert summarise(Records.read(write(tmp_path, rows))).below("slo/") == {
        "fast/requests": 1, "slow/requests": 3, "fast/violation_rate": 1.0, "slow/violation_rate": pytest.approx(1 / 3),
    }  # fmt: skip
