"""The price and the time of a hosted API's calls."""

from dataclasses import replace

import pytest

from serving.hardware.hosted_api import HostedApi
from tests.support.conf_files import fields, names

FIGURES = ("usd_per_million_input_tokens", "usd_per_million_output_tokens", "ttft_s", "tokens_per_s")
API = HostedApi("an_api", 0.1, 0.4, 0.5, 20.0, "2026-11", sources=dict.fromkeys(FIGURES, "unverified: assumed"))


def test_a_call_is_paid_by_its_tokens() -> None:
    """Two million tokens sent and half a million received: 0.2 and 0.2 USD."""
    assert API.usd(2e6, 5e5) == pytest.approx(0.4)


def test_a_call_takes_its_first_token_and_then_the_others() -> None:
    assert API.call_s(1) == 0.5
    assert API.call_s(21) == pytest.approx(1.5)


@pytest.mark.parametrize("name", names("hardware/api"))
def test_every_api_of_conf_has_a_source_for_each_figure(name: str) -> None:
    found = HostedApi(**fields("hardware/api", name))
    assert found.name == name
    assert set(found.sources) == set(FIGURES)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sources": {}}, "no source for tokens_per_s, ttft_s, usd"),
        ({"sources": {"price": "datasheet: a list"}}, "speaks of 'price'"),
        ({"tokens_per_s": 0.0}, "must be above 0"),
        ({"ttft_s": -1.0}, "must be 0 or more"),
        ({"date": "yesterday"}, "must be the day or month of the prices, as in"),
    ],
)
def test_an_api_without_source_date_or_speed_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(API, **change)  # type: ignore[arg-type]
