import pytest

from pipeline.report.mlflow_store import flatten, mask_override, mask_secrets


def test_parameters_are_flattened_to_dotted_keys():
    config = {"policy": {"name": "sled", "draft": {"n": 4}}, "force": [], "modes": ["15W", "30W"], "none": None}
    assert flatten(config) == {
        "policy.name": "sled", "policy.draft.n": "4", "force": "[]", "modes": '["15W", "30W"]', "none": "null"
    }  # fmt: skip


def test_lists_of_groups_are_numbered():
    assert flatten({"slo": [{"name": "fast"}, {"name": "slow"}]}) == {"slo.0.name": "fast", "slo.1.name": "slow"}


def test_mlflows_limits_are_kept():
    ((key, value),) = flatten({"k" * 300 + "(": "v" * 7000}).items()
    assert len(key) == 250
    assert (len(value), value[-1]) == (6000, "…")
    assert list(flatten({"a(b)": 1})) == ["a_b_"]


@pytest.mark.parametrize("key", ["key", "api_key", "apiKey", "bearer_token", "password", "a_secret", "credentials"])
def test_values_under_secret_names_are_masked(key):
    assert mask_secrets({"cloud": [{key: "s3cret"}]}) == {"cloud": [{key: "***"}]}
    assert mask_override(f"+cloud.{key}=s3cret") == f"+cloud.{key}=***"


@pytest.mark.parametrize("key", ["max_new_tokens", "tokens_per_s", "monkey", "tokenizer", "keep"])
def test_values_under_other_names_are_kept(key):
    assert mask_secrets({key: 48}) == {key: 48}


def test_empty_and_boolean_values_are_not_masked():
    assert mask_secrets({"api_key": None, "use_token": True}) == {"api_key": None, "use_token": True}


def test_logins_in_addresses_are_masked():
    assert mask_secrets({"uri": "postgresql://me:s3cret@db/x"}) == {"uri": "postgresql://***@db/x"}
