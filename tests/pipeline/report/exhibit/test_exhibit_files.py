"""Every experiment of conf/ composes, and its exhibit would be shown if its sweep ran now."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.types import RunMode
from omegaconf import open_dict

from pipeline.config.arguments import conf_dir
from pipeline.config.build import ConfigSchema, construct
from pipeline.config.compose import prepare_hydra
from pipeline.config.resolve import resolve
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.sweep import prepare_exhibit

EXPERIMENTS = conf_dir() / "experiment"
FILES = {str(file.relative_to(EXPERIMENTS).with_suffix("")): file for file in sorted(EXPERIMENTS.rglob("[!_]*.yaml"))}


@pytest.mark.parametrize("name", FILES)
def test_every_experiment_of_the_project_composes_and_has_a_valid_exhibit(name: str) -> None:
    prepare_hydra()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", [f"+experiment={name}"], return_hydra_config=True)
        assert "serve" in config.stages
        if "\nexhibit:" not in FILES[name].read_text(encoding="utf-8"):
            return
        if config.hydra.mode == RunMode.MULTIRUN:
            assert prepare_exhibit(config) is not None
            return
        with open_dict(config):
            del config["hydra"]
        node = resolve(config)["exhibit"]
    data = ConfigSchema(str, lambda _target, _name: None).coerce(node, Exhibit, "exhibit")
    assert isinstance(construct(data, None, "exhibit"), Exhibit)
