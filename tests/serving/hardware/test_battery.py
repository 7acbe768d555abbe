"""How much of a battery an energy is."""

import pytest

from serving.hardware.battery import Battery
from tests.support.conf_files import fields, names


def test_an_energy_is_a_share_of_the_battery() -> None:
    """10 Wh are 36,000 J."""
    battery = Battery(10.0, "datasheet: a label", "2026-11-22")
    assert battery.share(9000.0) == pytest.approx(0.25)
    assert battery.share(72000.0) == pytest.approx(2.0)


@pytest.mark.parametrize("name", names("hardware/battery"))
def test_the_batteries_of_conf_have_sources(name: str) -> None:
    assert Battery(**fields("hardware/battery", name)).wh > 0
    assert name in names("hardware/chip")


@pytest.mark.parametrize(
    ("wh", "source", "date", "why"),
    [
        (0.0, "datasheet: a label", "2026-11", "must be above 0"),
        (1.0, "a label", "2026-11", "does not say what its evidence is"),
        (1.0, "datasheet: a label", "new", "must be the day or month"),
    ],
)
def test_a_battery_without_source_or_date_is_refused(wh: float, source: str, date: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Battery(wh, source, date)
