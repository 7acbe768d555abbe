"""Files of conf/ are parsed once a process and composed as Hydra's own source composes them."""

from pathlib import Path

import pytest
import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource as HydrasSource
from omegaconf import OmegaConf

from pipeline.config.arguments import conf_dir
from pipeline.config.config_files import FileConfigSource

TEXT = "# @package _global_\na: 1e-3\nb: 0x10\nc: 12:30\nd: on\ne: 2026-11-23\nf: ${a}\ng: [.5, null, ~]\n"


@pytest.mark.parametrize("name", ["config", "experiment/synera/table4", "policy/wisp", "hardware/jetson_orin"])
def test_a_file_is_read_as_by_hydra(name: str) -> None:
    ours, hydras = (kind("main", str(conf_dir())).load_config(name) for kind in (FileConfigSource, HydrasSource))
    assert OmegaConf.to_container(ours.config) == OmegaConf.to_container(hydras.config)
    assert (ours.header, ours.path, ours.provider) == (hydras.header, hydras.path, hydras.provider)


def test_scalars_have_the_types_that_omegaconf_gives_them(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    ours, hydras = (kind("main", str(tmp_path)).load_config("x").config for kind in (FileConfigSource, HydrasSource))
    assert repr(OmegaConf.to_container(ours)) == repr(OmegaConf.to_container(hydras))


def test_a_change_of_what_was_loaded_does_not_reach_the_next_reader(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    source = FileConfigSource("main", str(tmp_path))
    source.load_config("x").config["a"] = 5
    assert source.load_config("x").config["a"] == 1e-3


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\n")
    source = FileConfigSource("main", str(tmp_path))
    source.load_config("x")
    (tmp_path / "x.yaml").write_text("a: 22\n")
    assert source.load_config("x").config["a"] == 22


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(yaml.constructor.ConstructorError, match="duplicate key a"):
        FileConfigSource("main", str(tmp_path)).load_config("x")
