import logging
from pathlib import Path

import pytest

from pipeline.report import figures
from pipeline.report.figures import TradeoffPoint
from pipeline.report.records import Records
from pipeline.report.series_style import POLICIES, series_styles
from tests.pipeline.report.serve_artifact import drawn, request, write

PNG = b"\x89PNG"
SHARE, TBT, COST = "offloading/token_share", "latency/tbt_s/mean", "cost/usd_per_million_tokens"


@pytest.fixture
def records(tmp_path):
    return Records.read(drawn(tmp_path / "serve", n=6))


@pytest.mark.usefixtures("every_kind")
@pytest.mark.parametrize("draw", [figures.draw_latency, figures.draw_timeline])
def test_the_same_records_give_the_same_files_as_png_pdf_and_svg(draw, records, tmp_path):
    paths = [draw(records, tmp_path / name / "x.png") for name in "ab"]
    for kind, magic in ((".png", PNG), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        first, second = (path.with_suffix(kind).read_bytes() for path in paths)
        assert first.startswith(magic)
        assert first == second


@pytest.mark.usefixtures("every_kind")
def test_saving_a_figure_logs_nothing(records, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        figures.draw_latency(records, tmp_path / "latency.png")
    assert caplog.records == []


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


@pytest.fixture
def drawn_figures(monkeypatch):
    """The figures that are drawn, as they were saved."""
    found = []
    create = figures.create_figure
    monkeypatch.setattr(figures, "create_figure", lambda *size: found.append(create(*size)) or found[-1])
    return found


def assert_readable(figure, n, path):
    """No two series look alike; the legend is in the picture, beside panels and title, as PNG and as PDF and SVG."""
    assert path.read_bytes().startswith(PNG)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(texts) == len(set(texts)) >= n
    for dpi in (130, 72):
        figure.set_dpi(dpi)
        figure.draw_without_rendering()
        legend, picture = figure.legends[0].get_window_extent(), figure.bbox
        assert picture.x0 <= legend.x0 < legend.x1 <= picture.x1
        assert picture.y0 <= legend.y0 < legend.y1 <= picture.y1
        assert not overlap(legend, figure._suptitle.get_window_extent())
        for axes in figure.axes:
            assert not overlap(legend, axes.get_tightbbox())
            assert axes.get_window_extent().height > 2.3 * dpi
            lines = [container.lines[0] for container in axes.containers]
            looks = {(line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)) for line in lines}
            assert len(lines) == len(looks) == n


def tradeoff_points(groups):
    for number, (group, policy) in enumerate(groups):
        for x in (0.1, 0.4):
            metrics = {SHARE: x, TBT: 0.01 * (1 + number % 7), COST: 0.001 * number}
            yield TradeoffPoint(group, f"{x}", 0.02 * number, 0.02 * number - 0.1, 0.02 * number + 0.1, metrics, policy)


def policies(n):
    return [*POLICIES, *(f"mine_{number}" for number in range(n))][:n]


def overlap(one, other):
    return one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1


@pytest.mark.parametrize("n", [1, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 40))])
@pytest.mark.parametrize("networks", [("",), (", lte", ", wifi of the whole campus in the afternoon")])
def test_series_are_told_apart_and_the_legend_lies_in_the_picture_beside_the_data(n, networks, drawn_figures, tmp_path):
    groups = [(policy + network, policy) for policy in policies(n) for network in networks][:n]
    path = figures.draw_tradeoff(list(tradeoff_points(groups)), tmp_path / "tradeoff.png")
    (figure,) = drawn_figures
    assert_readable(figure, n, path)


def test_a_legend_of_labels_wider_than_the_picture_lies_in_it(drawn_figures, tmp_path):
    groups = [(f"{policy} {'with a very long name ' * 12}", policy) for policy in policies(3)]
    path = figures.draw_tradeoff(list(tradeoff_points(groups)), tmp_path / "tradeoff.png")
    assert_readable(drawn_figures[0], 3, path)


def test_a_long_title_is_wrapped_into_the_picture(drawn_figures, tmp_path):
    figure = figures.create_figure(5.0, 3.0)
    axes = figure.add_subplot()
    title = "Hyperion, Fig. 5: latency by rate of arrival, on the testbed of section 6, with models of three sizes"
    figures.save_figure(figure, tmp_path / "x.png", title)
    figure.draw_without_rendering()
    box = figure._suptitle.get_window_extent()
    assert "\n" in figure._suptitle.get_text()
    assert box.x1 <= figure.bbox.x1
    assert not overlap(box, axes.get_tightbbox())


def test_a_policy_has_its_colour_in_every_figure():
    every = series_styles({policy: policy for policy in [*POLICIES, "mine"]})
    assert len({style.colour for style in every.values()}) == len(POLICIES) + 1
    for chosen in (["wisp", "synera"], ["synera", "wisp", "mine"]):
        found = series_styles({f"{policy}, lte": policy for policy in chosen})
        assert [style.colour for style in found.values()][:2] == [every[policy].colour for policy in chosen[:2]]
    first, second = (
        series_styles({name: name for name in names})["mine"] for names in (("mine", "sled"), ("mine", "hat"))
    )
    assert first == second


def test_every_policy_of_conf_has_a_colour():
    folder = Path(__file__).parents[3] / "conf" / "policy"
    assert sorted(POLICIES) == sorted(path.stem for path in folder.glob("*.yaml") if path.stem != "unset")


def test_series_of_one_policy_have_colours_of_their_own():
    found = series_styles(dict.fromkeys(("alone", "joint", "early"), "synera"))
    assert len({style.colour for style in found.values()}) == 3
