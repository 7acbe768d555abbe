"""What the busy seconds of a chip cost."""

import pytest

from serving.hardware.fleet import Fleet
from serving.hardware.price import Price
from tests.support.conf_files import chip

PRICE = Price(1.2, "datasheet: a list", "2026-11")


def test_busy_seconds_cost_their_share_of_an_hour() -> None:
    assert PRICE.usd(1800.0) == pytest.approx(0.6)
    assert PRICE.described == "1.2 USD an hour of a chip (datasheet: a list; 2026-11)"


def test_a_node_pays_for_all_its_chips() -> None:
    a6000 = chip("rtx_a6000")
    assert a6000.price is not None
    one, four = Fleet(a6000), Fleet(a6000, tensor_parallel=4)
    assert one.usd(3600.0) == pytest.approx(a6000.price.usd_per_hour)
    assert four.usd(3600.0) == pytest.approx(4 * a6000.price.usd_per_hour)


def test_the_cost_of_a_chip_without_a_price_is_unknown() -> None:
    assert Fleet(chip("pixel_7")).usd(1.0) is None


@pytest.mark.parametrize("name", ["rtx_a6000", "a100_80gb", "jetson_orin_nx_16gb", "jetson_agx_orin_32gb"])
def test_chips_of_a_cloud_have_a_price_with_source_and_date(name: str) -> None:
    price = chip(name).price
    assert price is not None
    assert price.usd_per_hour > 0
    assert price.source
    assert price.date


@pytest.mark.parametrize(
    ("usd", "source", "date", "why"),
    [
        (-1.0, "datasheet: a list", "2026-11", "must not be negative"),
        (1.0, "a list", "2026-11", "does not say what its evidence is"),
        (1.0, "datasheet: a list", "last year", "must be the day or month"),
    ],
)
def test_a_price_without_source_or_date_is_refused(usd: float, source: str, date: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Price(usd, source, date)
