"""What Hydra writes beside results has no secret of the command."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra._internal.core_plugins import basic_sweeper
from hydra.core import utils
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from pipeline.report.hydra_notes import mask_hydras_notes

LOGIN = "tracking.uri='http://me:hidden@127.0.0.1/'"
KEY = "+model.api_key=hidden"


def given(*words: str) -> Any:
    return OmegaConf.create({"hydra": {"overrides": {"task": list(words), "hydra": []}}})


@pytest.fixture
def masking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "_save_config", utils._save_config)
    monkeypatch.setattr(basic_sweeper, "OmegaConf", basic_sweeper.OmegaConf)
    mask_hydras_notes()


def noted(folder: Path, monkeypatch: pytest.MonkeyPatch, config: Any, *words: str) -> str:
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(overrides=given(*words).hydra.overrides))
    utils._save_config(OmegaConf.create(config), "note.yaml", folder)
    return (folder / "note.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("masking")
def test_the_notes_of_a_job_have_no_secret_of_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "tracking": {"uri": "http://me:hidden@127.0.0.1/"}, "model": {"api_key": "hidden", "k": 4},
        "name": f"{KEY},{LOGIN}",
    }  # fmt: skip
    for whole in (config, [LOGIN, KEY, "policy=sled"]):
        assert "hidden" not in noted(tmp_path, monkeypatch, whole, LOGIN, KEY, "policy=sled")
    assert yaml.safe_load(noted(tmp_path, monkeypatch, config, KEY))["model"] == {"api_key": "***", "k": 4}


@pytest.mark.usefixtures("masking")
def test_notes_without_a_secret_stay_as_hydra_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"service": {"token_env": "TANDEM_TOKEN"}, "seed": "${other}"}
    assert yaml.safe_load(noted(tmp_path, monkeypatch, config, "seed=3")) == config


@pytest.mark.usefixtures("masking")
def test_the_note_of_a_sweep_has_no_secret(tmp_path: Path) -> None:
    whole = OmegaConf.merge(given(LOGIN, KEY), {"model": {"api_key": "hidden"}})
    basic_sweeper.OmegaConf.save(whole, tmp_path / "multirun.yaml")
    text = (tmp_path / "multirun.yaml").read_text(encoding="utf-8")
    assert "hidden" not in text
    assert "tracking.uri='http://***@127.0.0.1/'" in text
