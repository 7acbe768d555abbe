import pytest

from pipeline.report import figures
from pipeline.report.figures import TradeoffPoint


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
