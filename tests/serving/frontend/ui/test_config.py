"""Invalid page configurations are refused at start."""

from dataclasses import replace
from typing import Any

import pytest

from serving.frontend.service_options import ServiceOptions, UiOptions
from serving.frontend.ui.config import UiConfig
from tests.serving.frontend.ui.tiny_page import routed
from tests.support.fake_setup import setup


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


def test_two_policies_of_one_kind_have_different_names() -> None:
    """Each gets the name under which it is configured; a name equal to the first policy's is left out."""
    strict = routed()
    strict = replace(strict, offload=replace(strict.offload, threshold=0.2))  # type: ignore[type-var]
    shown = UiConfig(replace(setup(), policy=routed()), ServiceOptions(), {"strict": strict, "citer": strict})
    assert list(shown.setups) == list(shown.policy_cards) == ["citer", "strict"]
    assert [each.name for each in shown.policy_cards.values()] == ["citer", "strict"]
    assert [each.routed and each.routed.effective_threshold for each in shown.policy_cards.values()] == [0.4, 0.2]
    assert shown.excluded_policies == ()


def test_with_a_remote_cloud_other_policies_that_need_one_are_excluded() -> None:
    others = {name: setup(name).policy for name in ("edge_centric", "cloud_centric")}
    service = ServiceOptions(page=UiOptions(remote_cloud=True))
    shown = UiConfig(replace(setup(), policy=routed()), service, others)
    assert list(shown.setups) == ["citer", "edge_centric"]
    assert shown.excluded_policies == ("cloud_centric",)
    with pytest.raises(ValueError, match="edge_centric places nothing in a cloud"):
        UiConfig(setup("edge_centric"), service)


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "")
    with pytest.raises(ValueError, match="set but empty"):
        UiConfig(setup(), ServiceOptions())
