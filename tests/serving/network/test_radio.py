"""What a device's radio draws: figures, sources, and what is refused."""

from dataclasses import replace

import pytest

from serving.core.provenance import evidence_class
from serving.network.radio import Radio
from tests.support.conf_files import fields, link, names, radio_named

MADE_UP = Radio(up_j_per_mb=2, down_j_per_mb=1, awake_w=3, tail_w=0.5, tail_s=4, wake_j=0.25)


def test_joules_are_those_of_bytes_air_tail_and_waking():
    assert MADE_UP.joules(up_nbytes=3e6, down_nbytes=1e6, air_s=2, tail_s=4, wakes=2) == 6 + 1 + 6 + 2 + 0.5


@pytest.mark.parametrize("name", names("network/radio"))
def test_every_figure_of_a_radio_has_a_source(name):
    made = radio_named(name)
    assert set(made.sources) == {"all"}
    assert {evidence_class(source) for source in made.sources.values()} <= {"measured", "derived"}


@pytest.mark.parametrize(
    ("name", "alpha_u", "alpha_d", "beta_mw"), [("lte", 438.39, 51.97, 1288.04), ("wifi", 283.17, 137.01, 132.86)]
)
def test_lte_and_wifi_are_those_of_huang_et_al(name, alpha_u, alpha_d, beta_mw):
    """mW for each Mbit/s are mJ a megabit: 8 of them are a megabyte."""
    made = radio_named(name)
    assert made.up_j_per_mb == pytest.approx(8e-3 * alpha_u, abs=5e-4)
    assert made.down_j_per_mb == pytest.approx(8e-3 * alpha_d, abs=5e-4)
    assert made.awake_w == pytest.approx(beta_mw / 1e3)


def test_waking_and_one_tail_of_lte_are_the_12_8_j_that_the_paper_sums_up():
    made = radio_named("lte")
    assert made.joules(0, 0, 0, made.tail_s, 1) == pytest.approx(12.76, rel=0.02)


def test_a_cable_costs_nothing_and_a_link_without_figures_has_no_radio():
    wired = link("lan_1gbps").radio
    assert wired
    assert wired.joules(1e9, 1e9, 100, 100, 10) == 0
    assert wired.described == "none (derived: a cable has no radio)"
    assert link("mbps_10").radio is link("wan").radio is link("5g").radio is None


def test_every_link_of_conf_names_its_radio_or_says_that_it_is_not_known():
    chosen = {name: fields("network", name)["radio"] for name in names("network")}
    assert set(chosen.values()) == {None, *names("network/radio")}


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_a_radio_refuses_what_is_no_power(value):
    with pytest.raises(
        ValueError, match=r"network.radio: tail_w=.* must be 0 or more, and finite; .* network.radio=null"
    ):
        replace(MADE_UP, tail_w=value)


def test_a_source_of_no_figure_is_refused():
    with pytest.raises(ValueError, match=r"network.radio: sources speaks of 'idle_w'"):
        replace(MADE_UP, sources={"idle_w": "measured: by us"})
