"""Files of conf/ are parsed once a process and composed as Hydra's own source composes them."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource as HydrasSource
from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource as HydrasPackageSource,
)
from omegaconf import Container, DictConfig, Node, OmegaConf

from pipeline.config.arguments import conf_dir, normalise
from pipeline.config.compose import prepare_hydra
from pipeline.config.config_files import FileConfigSource, ImportlibResourcesConfigSource
from pipeline.config.sources import read_file
from pipeline.errors import ConfigError

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


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML has no libyaml here")
def test_libyaml_parses_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML's own parser takes ten times as long."""
    monkeypatch.setattr("yaml.scanner.Scanner.fetch_more_tokens", lambda self: pytest.fail("this is parsed in Python"))
    (tmp_path / "x.yaml").write_text(TEXT)
    assert FileConfigSource("main", str(tmp_path)).load_config("x").config["a"] == 1e-3


def test_a_change_of_what_was_loaded_does_not_reach_the_next_reader(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    source = FileConfigSource("main", str(tmp_path))
    for value in (5, 6, 7):
        config = source.load_config("x").config
        assert config["a"] == 1e-3
        config["a"] = value


def test_a_copied_configuration_shares_nothing_with_its_source() -> None:
    prepare_hydra()
    source = OmegaConf.create({"a": {"b": 1, "c": "${a.b}", "d": [2, None]}, "e": "???"})
    OmegaConf.set_readonly(source.a, True)
    copied = deepcopy(source)
    assert (copied, OmegaConf.to_yaml(copied)) == (source, OmegaConf.to_yaml(source))
    assert OmegaConf.is_readonly(copied.a)
    OmegaConf.set_readonly(copied.a, False)
    for node in (copied.a._get_node("b"), copied.a.d._get_node(0)):
        node._set_flag("struct", True)
    copied.a.b, copied.a.d[0] = 7, 8
    assert copied.a.c == 7
    assert (source.a.b, source.a.c, source.a.d[0], OmegaConf.is_readonly(source.a)) == (1, 1, 2, True)
    assert not source.a._get_node("b")._metadata.flags
    assert not source.a.d._get_node(0)._metadata.flags


def test_hydras_own_files_are_read_as_by_hydra_and_each_reader_may_change_them() -> None:
    ours, hydras = (kind("hydra", "pkg://hydra.conf") for kind in (ImportlibResourcesConfigSource, HydrasPackageSource))
    expected = hydras.load_config("hydra/help/default")
    for _ in range(2):
        found = ours.load_config("hydra/help/default")
        assert OmegaConf.to_yaml(found.config) == OmegaConf.to_yaml(expected.config)
        assert found.header == expected.header
        assert (found.path, found.provider) == (expected.path, expected.provider)
        found.config["app_name"] = "another"


def test_the_only_reader_of_a_file_is_given_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    copied: list[object] = []
    monkeypatch.setattr("pipeline.config.config_files.deepcopy", lambda node: copied.append(node) or node)
    source = FileConfigSource("main", str(tmp_path))
    source.load_config("x")
    assert not copied
    source.load_config("x")
    assert len(copied) == 1


@pytest.mark.parametrize(("size", "b"), [("small", 3), ("'${db}'", 2)])
def test_a_list_of_defaults_may_refer_to_another_choice(tmp_path: Path, size: str, b: int) -> None:
    files = {"config": f"defaults: [{{db: big}}, {{size: {size}}}]", "db/big": "a: 1", "size/big": "b: 2",
             "size/small": "b: 3"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text + "\n")
    prepare_hydra()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert compose("config") == {"db": {"a": 1}, "size": {"b": b}}


@pytest.mark.parametrize("overrides", [["policy=wisp"], ["+experiment=hat/table4", "policy=hat", "network=lte"]])
def test_each_node_knows_what_holds_it_and_no_flag_is_of_another_place(overrides: list[str]) -> None:
    prepare_hydra()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        nodes = list(_nodes(compose("config", normalise(overrides))))
    flags = [[node._get_flag(flag) for flag in ("struct", "readonly")] for node in nodes]
    for node in nodes:
        node.__dict__["_flags_cache"] = None
    assert flags == [[node._get_flag(flag) for flag in ("struct", "readonly")] for node in nodes]


def _nodes(config: Container) -> Iterator[Node]:
    """All nodes below. Raises AssertionError for one that says another parent."""
    for key in config if isinstance(config, DictConfig) else range(len(config)):
        node = config._get_node(key)
        assert isinstance(node, Node)
        assert node._get_parent() is config
        yield node
        if isinstance(node, Container) and not node._is_none() and not node._is_interpolation():
            yield from _nodes(node)


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\n")
    source = FileConfigSource("main", str(tmp_path))
    source.load_config("x")
    (tmp_path / "x.yaml").write_text("a: 22\n")
    assert source.load_config("x").config["a"] == 22


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match=r"x.yaml, line 2: this cannot be read as YAML: found duplicate key a"):
        FileConfigSource("main", str(tmp_path)).load_config("x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: b\n  c: d\n", r"mine.yaml, line 2: this cannot be read as YAML: mapping values are not allowed"),
        (b"a: 1\n\tb: 2\n", r"mine.yaml, line 2: this cannot be read as YAML: found a tab"),
        (b"name: \xff\n", r"mine.yaml is no text in UTF-8 \(byte 6\); save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_named_with_its_line(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        FileConfigSource("test", f"file://{tmp_path}").load_config("mine.yaml")
    with pytest.raises(ConfigError, match=message):
        read_file(tmp_path / "mine.yaml")
