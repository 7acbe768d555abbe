"""Which policies a hosted API can serve follows from their slots."""

from dataclasses import replace

import pytest

from serving.policy.policy import Policy
from serving.policy.slots.lookahead import HATLookahead
from serving.studies.buying.hosting import api_refusal
from tests.serving.studies.buying.apis import API, routing
from tests.serving.studies.capacity.steady_setup import setup
from tests.support.fake_setup import setup as made_up
from tests.support.policies import policy


@pytest.mark.parametrize("chosen", [policy("cloud_centric"), routing()])
def test_decoding_and_routing_need_no_verifier(chosen: Policy) -> None:
    assert api_refusal(setup(chosen=chosen), API) == ""


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (policy("sled"), "has drafts verified"),
        (policy("synera"), "has drafts verified"),
        (policy("edge_centric"), "asks no cloud"),
        (replace(routing(), lookahead=HATLookahead()), "drafts while it waits"),
    ],
)
def test_verifiers_are_no_apis(chosen: Policy, why: str) -> None:
    assert why in api_refusal(setup(chosen=chosen), API)


def test_a_split_model_is_no_apis() -> None:
    assert "splits the model" in api_refusal(made_up("u_shape"), API)


def test_an_api_serves_its_own_model() -> None:
    assert api_refusal(setup(chosen=policy("cloud_centric")), replace(API, model="qwen3_32b")) == ""
    why = api_refusal(setup(chosen=policy("cloud_centric")), replace(API, model="qwen3_14b"))
    assert why == "an_api serves qwen3_14b, and the cloud's model is timed as qwen3_32b"
