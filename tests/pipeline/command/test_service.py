"""The services' command lines: what they explain, and what they refuse before anything is built."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.command import service
from pipeline.config import build
from pipeline.errors import ConfigError
from tests.support.tiny_models import save_checkpoints

TOY = ("model=toy", "workload.template=plain")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Say":
    return Say(monkeypatch, capsys)


class Say:
    """Runs a command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, name: str, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", [f"serving.{name}", *words])
        self._monkeypatch.setattr("logging.basicConfig", lambda **_: None)
        code: object = 0
        try:
            service.main(name, f"What a {name} is.")
        except SystemExit as ended:
            code = ended.code
        assert isinstance(code, int)
        return code, *self._capsys.readouterr()


@pytest.mark.parametrize("word", ["--help", "-h"])
@pytest.mark.parametrize("name", ["cloud", "device", "page"])
def test_help_shows_the_policies_and_the_options_with_their_comments(said: Say, name: str, word: str) -> None:
    code, out, _ = said(name, "+policy=synera", word)
    assert code == 0
    assert out.startswith(f"usage: python -m serving.{name} +policy=NAME")
    assert f"What a {name} is." in out
    for line in ("  synera ", "  sled ", "service:", "  device: 0 ", "    port: 8000", "  shaped: false"):
        assert f"\n{line}" in out
    assert "_target_" not in out
    assert "# Groups whose files" not in out


@pytest.mark.parametrize(("stream", "words"), [("stdout", ("--help",)), ("stderr", ("+policy=nonsense",))])
def test_a_service_ends_quietly_where_its_output_goes_into_a_closed_pipe(
    said: Say, monkeypatch: pytest.MonkeyPatch, stream: str, words: tuple[str, ...]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, stream, closed)
        code, out, err = said("cloud", *words)
    assert (code, out, err) == (141, "", "")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), "which policy?"),
        (("+policy=syneras",), "there is no policy 'syneras'"),
        (("+policy=sled", "service.devise=1"), "service has no 'devise'. Did you mean device?"),
        (("+policy=sled", "--multirun"), "--multirun is not an option here"),
        (("+policy=sled", "--config-dir", "/none"), "there is no folder /none"),
        (("+policy=sled", "--config-dir"), "no folder"),
        (("+policy=sled", "service.device=x"), "got 'x'; a whole number is wanted"),
        (("+policy=sled", "service.device=4"), "service.device is 4, but the testbed has 4"),
        (("+policy=sled", "service.cloud=here"), "give host:port"),
        (("+policy=sled", "service.pace=fast"), "allowed are wall, hardware"),
    ],
)
def test_invalid_service_arguments_are_refused_with_a_reason(
    said: Say, tmp_path: Path, words: tuple[str, ...], match: str
) -> None:
    code, _, err = said("device", *words, *TOY, f"outputs={tmp_path}")
    assert code == 2
    assert err.count("error: ") == 1
    assert match in err
    assert not list(tmp_path.rglob("manifest.json"))


def test_starting_the_cloud_of_a_policy_without_one_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="edge_centric places nothing in a cloud"):
        service.run("cloud", ["+policy=edge_centric", *TOY, f"outputs={tmp_path}"])
    assert not any(tmp_path.iterdir())


def test_slots_that_exclude_each_other_are_named_as_conf_names_them(tmp_path: Path) -> None:
    words = ["+policy=edge_centric", "policy/draft=none", *TOY, f"outputs={tmp_path}"]
    with pytest.raises(ConfigError, match=r"policy/offload=never .* policy/draft=none"):
        service.run("device", words)


@pytest.mark.parametrize("option", ["--config-dir", "-cd"])
@pytest.mark.parametrize("joined", [True, False])
def test_policies_of_a_users_config_folder_can_be_served(tmp_path: Path, option: str, joined: bool) -> None:
    own = tmp_path / "own"
    (own / "policy").mkdir(parents=True)
    (own / "policy" / "mine.yaml").write_text("defaults: [edge_centric, _self_]\nname: mine\n")
    words = [f"{option}={own}"] if joined else [option, str(own)]
    with pytest.raises(ConfigError, match="policy mine places nothing in a cloud"):
        service.run("cloud", ["+policy=mine", *words, *TOY, f"outputs={tmp_path / 'outputs'}"])


def test_a_service_gets_the_configured_setup_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.cloud import CloudConfig

    called = []

    def run(config: CloudConfig, accelerator: str = "cpu") -> None:
        called.append((config, accelerator))
        raise ValueError("the address is taken")

    def load(path: str, where: str) -> Any:
        return run if path == "serving.cloud.run" else build_load(path, where)

    build_load = build.load  # which remembers what it found
    monkeypatch.setattr(build, "load", load)
    monkeypatch.setattr("pipeline.running.Job.run", lambda *_: None)
    models = save_checkpoints(tmp_path / "models")
    words = [f"model.{side}.path={models[side]}" for side in ("device", "cloud")]
    words += ["service.cloud=127.0.0.1:9", "service.health.port=null", f"outputs={tmp_path / 'outputs'}"]
    with pytest.raises(ConfigError, match=r"^cloud: the address is taken$"):
        service.run("cloud", ["+policy=sled", *TOY, *words])
    cloud, accelerator = called[0]
    assert (cloud.service.cloud, cloud.service.health.port, cloud.setup.policy.name) == ("127.0.0.1:9", None, "sled")
    assert accelerator == "cpu"


# The page, which shows other policies beside the one of the command line.


def shown(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The arguments that the page would be started with."""
    called = []

    def run(config: Any, accelerator: str = "cpu") -> None:
        called.append(config)

    def load(path: str, where: str) -> Any:
        return run if path == "serving.frontend.ui.server.run" else build_load(path, where)

    build_load = build.load
    monkeypatch.setattr(build, "load", load)
    monkeypatch.setattr("pipeline.running.Job.run", lambda *_: None)
    models = save_checkpoints(tmp_path / "models")
    words = (*words, *(f"model.{side}.path={models[side]}" for side in ("device", "cloud")))
    service.run("page", [*words, *TOY, f"outputs={tmp_path / 'outputs'}"], ("page=default",))
    return called[0]


@pytest.mark.parametrize(
    ("words", "policies"),
    [
        ((), ["sled", "edge_centric", "cloud_centric"]),
        (("page=none",), ["sled"]),
        (("page=none", "+policy@page.policies.mine=cloud_centric"), ["sled", "mine"]),
        (("page=none", "+policy@page.policies.twice=sled", "page.policies.twice.draft.k=3"), ["sled", "twice"]),
        (("policy/scheduler=sarathi",), ["sled", "edge_centric", "cloud_centric"]),
    ],
)
def test_several_policies_are_served_by_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], policies: list[str]
) -> None:
    found = shown(("+policy=sled", *words), tmp_path, monkeypatch)
    assert list(found.setups) == policies
    assert (found.service.page.pace, found.service.page.shaped, found.service.pace) == ("hardware", True, "wall")
    schedulers = [type(setup.policy.scheduler).__name__ for setup in found.setups.values()]
    assert schedulers[0] == ("ContinuousBatch" if "policy/scheduler=sarathi" in words else "StaticBatch")


def test_a_policy_that_would_share_another_policys_artifact_is_refused(tmp_path: Path) -> None:
    words = ["+policy=edge_centric", "+policy@page.policies.synera=synera", *TOY, f"outputs={tmp_path}"]
    with pytest.raises(ConfigError, match=r"page.policies.synera needs the artifact thresholds, .* the draft of"):
        service.run("page", words)


CO_LLM_JOINT = ("+policy=co_llm", "policy/offload=co_llm_joint")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((*CO_LLM_JOINT, "page=routing"), r"page\.policies\.co_llm would change policy\.artifacts\.routes_1 for the"),
        (
            (
                "+policy=edge_centric",
                "+policy@page.policies.j=co_llm",
                "policy/offload@page.policies.j.offload=co_llm_joint",
            ),
            r"page\.policies\.j would change model for the",
        ),
        (("+policy=own", "page=routing"), r"page\.policies\.citer would change policy\.artifacts\.router_1 for the"),
    ],
)
def test_further_policies_do_not_change_the_artifacts_of_the_first(
    tmp_path: Path, words: tuple[str, ...], match: str
) -> None:
    """Slots that are composed last have the last word on artifacts that all share."""
    (tmp_path / "own" / "policy").mkdir(parents=True)
    own = "defaults: [citer, _self_]\nname: own\nartifacts: {router_1: {routed_share: 0.3}}\n"
    (tmp_path / "own" / "policy" / "own.yaml").write_text(own)
    words = (*words, *TOY, f"outputs={tmp_path / 'outputs'}", "--config-dir", str(tmp_path / "own"))
    with pytest.raises(ConfigError, match=match):
        service.run("page", words)


def test_the_words_of_page_policies_are_removed_but_not_those_of_artifacts() -> None:
    from pipeline.config import policy_variants

    words = ["+policy=citer", "service.page.port=0", "policy/offload@policy.offload=citer"]
    assert policy_variants.without_page_policies(words) == words
    of_page = ["+page=routing", "+policy@page.policies.a=citer", "page.policies.a.name=b"]
    assert policy_variants.without_page_policies([*of_page, "policy.artifacts.router_1.routed_share=0.2"]) == [
        "++policy.artifacts.router_1.routed_share=0.2"
    ]


def test_one_page_serves_two_routed_policies() -> None:
    from pipeline import api
    from pipeline.config import policy_variants

    words = ("policy=edge_centric", "page=routing", "model=toy", "policy.artifacts.router_1.routed_share=0.2")
    with api.composed(*policy_variants.without_page_policies(words)) as alone:
        pass
    with api.composed(*words) as cfg:
        policy_variants.check(cfg, alone)
        assert set(cfg.page.policies) == {"citer", "co_llm", "edge_centric", "cloud_centric"}
        paths = [dict(cfg.page.policies[name].offload.scorer.path) for name in ("citer", "co_llm")]
    assert paths == [{"_stage_": "router_3"}, {"_stage_": "co_llm"}]
