import json
from dataclasses import asdict, replace

import pytest

from serving.hardware.chip import roofline
from serving.hardware.fitted_latencies import load_fitted_latencies
from serving.hardware.latency import ForwardLoad, LinearLatency, batch_load, forward_load
from serving.messages import ForwardWork, SequenceSlice, Span
from serving.outcomes.loads import summed
from tests.support.conf_files import architecture, chip, fits

TABLE_12 = LinearLatency(33.14e-6, 34.5e-9, 4.62e-6, 14.86e-3, layers=64, source="WISP, Table 12")


def test_the_load_of_a_batch_is_counted_as_in_wisp():
    batch = batch_load(64, [(0, 300), (1000, 5), (50, 1)], head_tokens=7)
    assert batch == ForwardLoad(64, 306, 300 * 300 + 1005 * 5 + 51, 1050, 7, extra_sessions=2)


def test_a_hop_in_the_middle_runs_its_own_layers_and_no_head():
    work = ForwardWork(Span(8, 20), (SequenceSlice("a", 7, 3, (1, 2, 3), 2, "greedy"),), ("last",))
    assert forward_load(work) == ForwardLoad(12, 3, (7 + 3) * 3, 7, 0, extra_sessions=0)


def test_predicted_seconds_follow_eq_19():
    batch = batch_load(64, [(1000, 5)] * 4)
    expected = 33.14e-6 * 20 + 34.5e-9 * 4 * 1005 * 5 + 4.62e-6 * 4000 + 14.86e-3
    assert TABLE_12.seconds(batch) == pytest.approx(expected)


def test_a_quarter_of_the_layers_takes_a_quarter_of_the_body_and_the_whole_head():
    latency = LinearLatency(1e-3, 1e-6, 1e-6, 8e-3, layers=32, source="made up", head_token_s=1e-3, head_c_s=2e-3)
    whole, part = ForwardLoad(32, 4, 100, 50), ForwardLoad(8, 4, 100, 50)
    assert latency.seconds(part) == pytest.approx(latency.seconds(whole) / 4)
    assert latency.seconds(part._replace(head_tokens=3)) == pytest.approx(latency.seconds(part) + 5e-3)


def test_consecutive_forwards_take_the_sum_of_their_seconds():
    latency = LinearLatency(1e-3, 1e-6, 1e-6, 8e-3, layers=32, source="made up", head_token_s=1e-3, head_c_s=2e-3)
    loads = [ForwardLoad(32, 4, 100, 50), ForwardLoad(8, 1, 9, 8, 1), ForwardLoad(0, 0, 0, 0, 2)]
    assert latency.total_seconds(loads, 32, 32) == pytest.approx(sum(map(latency.seconds, loads)))
    assert latency.total_seconds([ForwardLoad(3, 4, 100, 50)], 32, 8) == latency.seconds(ForwardLoad(12, 4, 100, 50))
    assert latency.total_seconds((), 32, 8) == 0
    alone = [ForwardLoad(8, 4, 100, 50, 1), ForwardLoad(8, 1, 9, 8, 1)]
    assert latency.total_seconds([ForwardLoad(8, 5, 109, 58, 2, num_forwards=2)], 32, 8) == pytest.approx(
        latency.total_seconds(alone, 32, 8)
    )


def test_extra_sessions_and_work_items_may_cost_time():
    plain = LinearLatency(1e-3, 1e-6, 1e-6, 8e-3, layers=32, source="made up")
    ours = replace(plain, session_s=4e-3, wake_s=5e-3)
    alone, batch = batch_load(32, [(50, 2)]), batch_load(8, [(50, 2), (9, 1), (0, 3)])
    assert ours.seconds(alone) - plain.seconds(alone) == pytest.approx(5e-3)
    assert ours.seconds(batch) - plain.seconds(batch) == pytest.approx(5e-3 + 2 * 4e-3 / 4)
    assert ours.total_seconds([alone, alone], 32, 32) == pytest.approx(2 * plain.seconds(alone) + 5e-3)
    assert ours.total_seconds((), 32, 32) == 0
    assert batch_load(32, []).extra_sessions == 0


def test_merged_loads_are_sums():
    passes = [batch_load(8, [(9, 2), (4, 1)], 3), batch_load(8, [(11, 1), (5, 1)], 2)]
    assert summed(passes) == ForwardLoad(8, 5, 22 + 5 + 12 + 6, 29, 5, num_forwards=2, extra_sessions=2)


def test_wisp_s_constant_is_below_the_time_that_reading_the_weights_takes():
    a100, qwen = chip("a100_80gb"), architecture("qwen3_32b")
    floor_s = qwen.weights_nbytes("fp16") / 2039e9
    assert floor_s == pytest.approx(0.032, rel=0.01)
    assert a100.fitted["wisp_table_12"].latencies["qwen3_32b"].a_s == TABLE_12.a_s
    assert all(each.latencies["qwen3_32b"].c_s < floor_s for each in a100.fitted.values())
    assert roofline(a100, None, qwen, "fp16").linear_read_s > floor_s


@pytest.mark.parametrize("value", [-1e-6, float("nan"), float("inf")])
def test_impossible_coefficients_are_refused(value):
    with pytest.raises(ValueError, match=r"b_read_s=.* must be a finite number of seconds, 0 or more"):
        LinearLatency(1e-6, 1e-9, value, 1e-3, layers=2, source="a fit")


def test_a_profile_round_trips(tmp_path):
    written = fits("here", {"tiny": asdict(TABLE_12)})
    (tmp_path / "latency.json").write_text(json.dumps(asdict(written)))
    assert load_fitted_latencies(tmp_path) == written == load_fitted_latencies(tmp_path / "latency.json")


def test_a_profile_that_is_missing_or_cut_off_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no profile at .*latency.json. Run the profile stage"):
        load_fitted_latencies(tmp_path / "latency.json")
    for text in ('{"source": "here", "lat', '{"source": "here"}', "[]", '{"source": "", "latencies": {"x": {"a": 1}}}'):
        (tmp_path / "latency.json").write_text(text)
        with pytest.raises(ValueError, match=r"latency.json cannot be read \(.*Delete it and profile again"):
            load_fitted_latencies(tmp_path)
