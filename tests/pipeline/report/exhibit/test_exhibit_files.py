"""The exhibits of conf/experiment: each would be shown if its sweep ran now."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.types import RunMode

from pipeline import api
from pipeline.config.arguments import conf_dir
from pipeline.config.build import ConfigSchema, construct
from pipeline.config.compose import prepare_hydra
from pipeline.config.resolve import resolve
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.sweep import prepare_exhibit

EXPERIMENTS = conf_dir() / "experiment"
NAMES = sorted(
    str(file.relative_to(EXPERIMENTS).with_suffix(""))
    for file in EXPERIMENTS.rglob("[!_]*.yaml")
    if "\nexhibit:" in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", NAMES)
def test_every_exhibit_of_the_project_is_valid(name: str) -> None:
    prepare_hydra()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", [f"+experiment={name}"], return_hydra_config=True)
        is_sweep = config.hydra.mode == RunMode.MULTIRUN
        if is_sweep:
            assert prepare_exhibit(config) is not None
    if not is_sweep:
        with api.composed(f"experiment={name}") as cfg:
            node = resolve(cfg)["exhibit"]
        data = ConfigSchema(str, lambda _target, _name: None).coerce(node, Exhibit, "exhibit")
        assert isinstance(construct(data, None, "exhibit"), Exhibit)
