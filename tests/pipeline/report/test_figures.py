import pytest

from pipeline.report import figures
from pipeline.report.figures import TradeoffPoint
from pipeline.report.records import Records
from tests.pipeline.report.serve_artifact import drawn, request, write

PNG = b"\x89PNG"


@pytest.fixture
def records(tmp_path):
    return Records.read(drawn(tmp_path / "serve", n=6))


@pytest.mark.parametrize("draw", [figures.draw_latency, figures.draw_timeline])
def test_the_same_records_give_the_same_file(draw, records, tmp_path):
    first, second = (draw(records, tmp_path / name / "x.png").read_bytes() for name in "ab")
    assert first.startswith(PNG)
    assert first == second


def test_one_token_without_gaps_or_cloud_can_be_drawn(tmp_path):
    records = Records.read(write(tmp_path, [request("a", ["device"], [0.5])]))
    assert figures.draw_latency(records, tmp_path / "latency.png").exists()
    assert figures.draw_timeline(records, tmp_path / "timeline.png").exists()


def test_the_typical_request_used_the_cloud_and_is_the_median_of_those(tmp_path):
    requests = [request(f"r{end}", ["cloud"], [float(end)]) for end in range(1, 6)]
    pieces = [{"request": f"r{n}", "lane": "verify", "start_s": 0, "end_s": 1, "amount": 1} for n in (2, 3, 5)]
    assert figures.typical_request(Records.read(write(tmp_path / "a", requests, pieces))).request == "r3"
    assert figures.typical_request(Records.read(write(tmp_path / "b", requests[:4]))).request == "r2"
    failed = [one | {"ending": "failed"} for one in requests]
    assert figures.typical_request(Records.read(write(tmp_path / "c", failed))).request == "r3"


def test_the_timeline_ends_after_twelve_rounds(tmp_path):
    pieces = [
        {"request": "r", "lane": lane, "start_s": n + at, "end_s": n + at + 0.5, "amount": 1}
        for n in range(20)
        for lane, at in (("verify", 0.0), ("downlink", 0.5))
    ]
    request_ = request("r", ["cloud"] * 20, [n + 1.0 for n in range(20)])
    records = Records.read(write(tmp_path, [request_], pieces))
    assert figures._end_of_axis(records.timeline, records.requests[0]) == 12.0
    assert figures._end_of_axis(records.timeline[:10], records.requests[0]) == 20.0


def test_a_request_that_ended_at_once_can_be_drawn(tmp_path):
    nothing = request("a", [], [0.0], ending="failed", ttft_s=None) | {"token_times_s": []}
    assert figures.draw_timeline(Records.read(write(tmp_path, [nothing])), tmp_path / "timeline.png").exists()


def test_a_tradeoff_draws_lines_intervals_and_only_known_axes(tmp_path):
    share, tbt = "offloading/token_share", "latency/tbt_s/mean"
    points = [TradeoffPoint("synera", f"{x}", x, x - 0.1, x + 0.1, {share: x, tbt: 0.01}) for x in (0.1, 0.4)]
    points.append(TradeoffPoint("edge_centric", "", 0.2, 0.2, 0.2, {share: 0.0, tbt: 0.02}))
    path = figures.draw_tradeoff(points, tmp_path / "tradeoff.png", "exact match")
    assert path.read_bytes().startswith(b"\x89PNG")
    width, height = (int.from_bytes(path.read_bytes()[at : at + 4], "big") for at in (16, 20))
    assert width / height == pytest.approx(2 * 4.4 / 4.0, abs=0.01)


def test_a_tradeoff_figure_without_points_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one complete job with a quality"):
        figures.draw_tradeoff([], tmp_path / "tradeoff.png")
