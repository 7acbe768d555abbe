"""What cannot be shown is refused when the page is set up."""

from dataclasses import replace
from typing import Any

import pytest
from fake_setup import setup
from frontend.ui.tiny_page import routed

from serving.frontend.service_options import ServiceOptions, UiOptions
from serving.frontend.ui.config import UiConfig


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"host": ""}, "service.page.host is empty"),
        ({"port": 70000}, "service.page.port is 70000"),
        ({"max_runs": 0}, "service.page.max_runs is 0"),
        ({"max_tokens": 0}, "service.page.max_tokens is 0"),
        ({"stall_timeout_s": 0.0}, "service.page.stall_timeout_s"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        UiOptions(**options)


def test_two_policies_of_one_kind_have_a_name_each() -> None:
    """The one under which a policy is put beside the first; the first has the first right to its own."""
    strict = routed()
    strict = replace(strict, offload=replace(strict.offload, threshold=0.2))  # type: ignore[type-var]
    shown = UiConfig(replace(setup(), policy=routed()), ServiceOptions(), {"strict": strict, "citer": strict})
    assert list(shown.setups) == list(shown.policy_cards) == ["citer", "strict"]
    assert [each.name for each in shown.policy_cards.values()] == ["citer", "strict"]
    assert [each.routed and each.routed.effective_threshold for each in shown.policy_cards.values()] == [0.4, 0.2]
    assert shown.excluded_policies == ()


def test_a_remote_cloud_serves_one_policy_and_the_others_that_need_it_are_left_out() -> None:
    beside = {name: setup(name).policy for name in ("edge_centric", "cloud_centric")}
    afar = ServiceOptions(page=UiOptions(remote_cloud=True))
    shown = UiConfig(replace(setup(), policy=routed()), afar, beside)
    assert list(shown.setups) == ["citer", "edge_centric"]
    assert shown.excluded_policies == ("cloud_centric",)
    with pytest.raises(ValueError, match="edge_centric places nothing in a cloud"):
        UiConfig(setup("edge_centric"), afar)


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "")
    with pytest.raises(ValueError, match="set but empty"):
        UiConfig(setup(), ServiceOptions())
