import io
import warnings

import pytest

from pipeline.report.mlflow_store import (
    Tracking,
    flatten,
    key_text,
    mask_override,
    mask_secrets,
    tolerate_mlflow_errors,
)
from pipeline.report.mlflow_view import run_page, runs_page


def test_two_processes_create_one_store_without_a_warning(fresh):
    assert fresh[1] == [("1\n", ""), ("1\n", "")]


@pytest.mark.parametrize("uri", ["file:./mlruns", "mlruns", "ftp://host"])
def test_addresses_without_a_store_are_refused(uri):
    with pytest.raises(ValueError, match=r"tracking.uri is .* allowed are null .* none .* http"):
        Tracking(uri=uri)


def test_an_experiment_has_a_name():
    with pytest.raises(ValueError, match=r"tracking\.experiment is empty"):
        Tracking(experiment=" ")


def test_the_tracking_address_follows_the_uri_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Tracking().address == f"sqlite:///{tmp_path}/outputs/mlflow.db"
    assert Tracking(uri="sqlite:///own.db").database == tmp_path / "own.db"
    assert Tracking(uri="http://127.0.0.1:5000").database is None
    assert [Tracking().enabled, Tracking(uri="none").enabled] == [True, False]


def test_mlflow_files_are_written_below_outputs(tracking, tmp_path):
    client, experiment_id = tracking.connect()
    assert client.get_experiment(experiment_id).artifact_location == f"file://{tmp_path}/mlflow"
    assert tracking.connect()[1] == experiment_id


def test_the_printed_line_starts_the_ui_and_opens_a_page(tmp_path):
    hint = Tracking(outputs=str(tmp_path)).ui_hint(run_page("1", "a"))
    assert hint.startswith("MLflow: MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false ")
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db --host 127.0.0.1" in hint
    assert hint.endswith("http://127.0.0.1:5000/#/experiments/1/runs/a?workflowType=machine_learning")


def test_a_server_needs_no_command_and_its_login_stays_secret():
    link = Tracking(uri="https://me:s3cret@mlflow.example/").ui_hint(runs_page("7"))
    assert link == "MLflow: open https://***@mlflow.example/#/experiments/7/runs?workflowType=machine_learning"


def test_an_error_of_mlflow_is_printed_once_and_does_not_end_the_job():
    said = io.StringIO()
    with tolerate_mlflow_errors(Tracking(uri="http://me:s3cret@127.0.0.1:1"), said.write):
        warnings.warn("chatter", FutureWarning, stacklevel=1)
        raise OSError("refused by http://me:s3cret@127.0.0.1:1\nand a long story")
    assert said.getvalue().startswith(
        "MLflow: could not log to http://***@127.0.0.1:1 (OSError: refused by http://***@"
    )
    assert "what was served is cached" in said.getvalue()
    assert "long story" not in said.getvalue()


def test_an_interrupt_is_passed_on():
    with pytest.raises(KeyboardInterrupt), tolerate_mlflow_errors(Tracking(), print):
        raise KeyboardInterrupt


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "_"), ("/", "_"), (".", "_"), ("..", "_"), ("../x", "_/x"), ("..x", "_x"), ("./x", "_/x"), ("x/.", "x/_"),
        ("a/../b", "a/_/b"), ("/a//b/", "a/b"), (".a/b.c", ".a/b.c"), ("k" * 249 + "/..", "k" * 249),
    ],
)  # fmt: skip
def test_a_key_is_a_path_that_mlflow_takes(name, text):
    from mlflow.utils.validation import _validate_metric_name

    assert key_text(name) == text
    assert _validate_metric_name(text) is None


@pytest.mark.parametrize(
    "key",
    [
        "key", "api_key", "apiKey", "bearer_token", "password", "a_secret", "credentials", "developer_token",
        "helper_password", "clientSecret", "secretKey", "hfToken", "pwd", "passphrase",
    ],
)  # fmt: skip
def test_values_under_secret_names_are_masked(key):
    assert mask_secrets({"cloud": [{key: "s3cret"}]}) == {"cloud": [{key: "***"}]}
    assert mask_override(f"+cloud.{key}=s3cret") == f"+cloud.{key}=***"


@pytest.mark.parametrize("key", ["max_new_tokens", "tokens_per_s", "s_per_token", "monkey", "keep", "maxNewTokens"])
def test_values_under_other_names_are_kept(key):
    assert mask_secrets({key: 48}) == {key: 48}


def test_a_group_below_a_folder_that_is_called_like_a_secret_is_kept():
    override = "+variant/token_routing/router=span_4"
    assert mask_override(override) == override


def test_empty_and_boolean_values_are_not_masked():
    assert mask_secrets({"api_key": None, "use_token": True}) == {"api_key": None, "use_token": True}


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("postgresql://me:s3cret@db/x", "postgresql://***@db/x"),
        ("postgresql://me:s3@cret@db/x", "postgresql://***@db/x"),
        ("postgresql+psycopg2://me:12/3@db:5432/x", "postgresql+psycopg2://***@db:5432/x"),
        ("http://me:s3/cr@et@host:5000/", "http://***@host:5000/"),
        ("http://s3cret@host/", "http://***@host/"),
        ("http://host/v1?user=me&token=s3cret&n=1", "http://host/v1?user=me&token=***&n=1"),
        ("http://host/v1?api-key=s3cret", "http://host/v1?api-key=***"),
    ],
)
def test_logins_and_keys_in_addresses_are_masked(address, masked):
    assert mask_secrets({"uri": address}) == {"uri": masked}
    assert mask_override(f"tracking.uri={address}") == f"tracking.uri={masked}"


@pytest.mark.parametrize(
    "value",
    [
        "http://host:5000/files@v2/x", "https://host/owner/name@v1", "sqlite:///outputs/mlflow.db",
        "http://[::1]:5000/x@v1", "http://host/?max_tokens=4&q=a", "[http://a:80,http://b:80/x@v1]",
        "{max_new_tokens: 4, name: a}", "${oc.env:HOST}", "[a, b]", "which token: the last",
    ],
)  # fmt: skip
def test_other_values_are_kept(value):
    assert mask_override(f"a.b={value}") == f"a.b={value}"


@pytest.mark.parametrize(
    "override",
    [
        "+cloud.api={api_key: sk-1}", "cloud.api={url: x, 'password':sk-1}", "cloud=[{access_tokens: [sk-1]}]",
        "x.headers={Authorization: Bearer sk-1}", "a.api_keys=[sk-1,sk-2]", "a.secrets=sk-1",
    ],
)  # fmt: skip
def test_secrets_inside_a_value_mask_it(override):
    assert mask_override(override) == f"{override.partition('=')[0]}=***"
