"""Two-column traces: both `holds` computed by hand, recorded, and malformed."""

import re

import pytest

from serving.network.two_columns import TwoColumnTrace

TEXT = "1 8\n3\t0\n\n4 16\n"


def test_a_rate_holds_until_its_time(written):
    rate = TwoColumnTrace(path=written(TEXT), start="begin").rate("down", 0)
    assert [rate.departure_s(nbytes, 0.0) for nbytes in (1e6, 2e6, 3e6, 3.5e6)] == pytest.approx([1.0, 3.5, 4.0, 4.5])


def test_with_holds_from_a_rate_starts_at_its_time(written):
    trace = TwoColumnTrace(path=written(TEXT), start="begin", holds="from")
    rate = trace.rate("down", 0)
    assert trace.data.period_s == pytest.approx(4)
    assert [rate.departure_s(nbytes, 0.0) for nbytes in (2e6, 3e6, 4e6, 5e6)] == pytest.approx([2.0, 3.5, 4.0, 5.0])


def test_with_holds_from_a_file_may_start_at_0(written):
    path = written("0 8\n2 16\n")
    assert TwoColumnTrace(path=path, holds="from").mean_mbps == pytest.approx(12)
    with pytest.raises(ValueError, match="line 1: the first rate would hold until 0 s; with holds=from it starts"):
        TwoColumnTrace(path=path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", " line 1: the file is empty"),
        ("1 8\n2\n", " line 2: found '2', needed are seconds and Mbit/s, as 0.5 3.2"),
        ("1 8 9\n", " line 1: found '1 8 9'"),
        (
            "seconds mbps\n1 8\n",
            " line 1: found 'seconds mbps', needed are seconds and Mbit/s, as 0.5 3.2; if this is a header, remove the",
        ),
        (
            "0.5,12.0\n",
            " line 1: found '0.5,12.0', needed are seconds and Mbit/s, as 0.5 3.2; separate them by a space, not by a",
        ),
        ("1 8\n2 -3\n", " line 2: found '2 -3', needed are finite numbers of 0 or more"),
        ("1 8\n2 inf\n", " line 2: found '2 inf'"),
        ("1 nan\n", " line 1: found '1 nan'"),
        ("-1 5\n", " line 1: found '-1 5'"),
        ("1 8\n3 8\n3 9\n", " line 3: 3 s is not after the 3 s of the previous line"),
        ("1 0\n2 0\n", ": every rate is 0, so no message would ever leave"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(written, text, message):
    path = written(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        TwoColumnTrace(path=path)


def test_with_holds_from_a_single_line_is_refused(written):
    path = written("5 8\n")
    assert TwoColumnTrace(path=path).data.period_s == 5
    with pytest.raises(ValueError, match="line 1: one line does not tell how long its rate holds"):
        TwoColumnTrace(path=path, holds="from")


def test_times_that_do_not_count_from_0_are_refused_where_they_would_make_a_constant(written):
    path = written("1700000000 12\n1700000001 8\n")
    with pytest.raises(ValueError, match=r"line 1: the first rate would hold for 1700000000 s, .* subtract the time"):
        TwoColumnTrace(path=path)
    assert TwoColumnTrace(path=path, holds="from").data.period_s == pytest.approx(2)


def test_a_first_rate_may_hold_a_hundred_times_as_long_as_the_later_ones(written):
    assert TwoColumnTrace(path=written("100 12\n101 8\n")).data.period_s == 101
    with pytest.raises(ValueError, match=r"line 1: the first rate would hold for 101 s, .* more than 1 s"):
        TwoColumnTrace(path=written("101 12\n102 8\n"))


def test_an_unknown_holds_is_refused(written):
    with pytest.raises(ValueError, match="holds='since' must be until or from"):
        TwoColumnTrace(path=written(TEXT), holds="since")


def test_oboe_s_rates_were_measured_until_their_times(data):
    """The first chunk of every session has one size, and only this reading gives it: 1.5 Mbit."""
    paths = sorted((data / "oboe").glob("*.txt"))
    assert len(paths) == 12
    for path in paths:
        first_s = float(path.read_text().split()[0])
        rate = TwoColumnTrace(path=path, start="begin").rate("down", 0)
        assert rate.nbytes_between(0.0, first_s) * 8 == pytest.approx(1.5e6, rel=0.01)
