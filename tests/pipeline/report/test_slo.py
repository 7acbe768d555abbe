from math import inf

import pytest

from pipeline.report import slo
from pipeline.report.records import RequestRecord
from pipeline.report.slo import SloCompliance
from tests.pipeline.report.serve_artifact import request


def served(**changes):
    """Three tokens, seen at 1, 1.5 and 2 s: two gaps in one second."""
    return RequestRecord(**request("r", ["device"] * 3, [1.0, 1.5, 2.0], **changes))


def test_speed_counts_gaps_from_the_first_token_on():
    assert slo.tokens_per_s(served()) == 2.0


def test_one_token_breaks_no_speed():
    assert slo.tokens_per_s(RequestRecord(**request("r", ["cloud"], [3.0]))) == inf


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"ending": "failed"}, False),
        ({"slo": "fast", "slo_tokens_per_s": 2.0}, True),
        ({"slo": "fast", "slo_tokens_per_s": 2.1}, False),
        ({"slo": "fast", "slo_tokens_per_s": 1.0, "slo_ttft_s": 0.9}, False),
        ({"slo": "fast", "slo_tokens_per_s": 1.0, "slo_ttft_s": 1.0}, True),
        ({"slo": "fast", "slo_ttft_s": 1.0, "ttft_s": None}, False),
    ],
    ids=["no class", "failed", "as fast as promised", "too slow", "first token late", "in time", "no token at all"],
)
def test_met(changes, met):
    assert slo.meets_slo(served(**changes)) is met


def test_violations_are_counted_by_class():
    fast, slow = {"slo": "fast", "slo_tokens_per_s": 8.0}, {"slo": "slow", "slo_tokens_per_s": 2.0}
    requests = [served(**fast), served(**slow), served(**slow), served(**slow, ending="failed"), served()]
    assert slo.by_slo_class(requests) == {"fast": SloCompliance(1, 1.0), "slow": SloCompliance(3, pytest.approx(1 / 3))}
