"""The digests of the files that a configuration was composed of."""

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pipeline.config import sources
from pipeline.config.arguments import conf_dir
from pipeline.config.compose import ConfigLibrary

TEXT = """# @package _global_
defaults: [a]
rate: 3  # a remark
exhibit: {title: t}
hydra: {sweeper: {params: {seed: 0}}}
"""


def digest(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "x.yaml").write_text(text)
    return sources.file_digest("x", folder), sources.exhibit_digest(["x"], folder)


def test_a_remark_changes_nothing_and_a_value_does(tmp_path):
    known = digest(tmp_path, TEXT)
    assert digest(tmp_path, TEXT.replace("a remark", "another")) == known
    assert digest(tmp_path, TEXT.replace("rate: 3", "rate: 4"))[0] != known[0]
    assert digest(tmp_path, TEXT.replace("_global_", "_group_"))[0] != known[0]


def test_an_exhibit_and_what_a_sweep_runs_have_a_digest_of_their_own(tmp_path):
    known = digest(tmp_path, TEXT)
    for changed in (TEXT.replace("title: t", "title: u"), TEXT.replace("seed: 0", "seed: 1")):
        configuration, exhibit = digest(tmp_path, changed)
        assert configuration == known[0]
        assert exhibit != known[1]


def test_changed_and_missing_files_are_named(tmp_path):
    configuration, _ = digest(tmp_path, TEXT)
    assert list(sources.changed_files({"x": configuration}, tmp_path)) == []
    found = sources.changed_files({"x": "0" * 12, "group/gone": "1" * 12}, tmp_path)
    assert list(map(str, found)) == ["conf/x.yaml has changed", "conf/group/gone.yaml is gone"]


def test_the_files_of_a_composition_are_its_defaults_and_the_nodes_that_it_names():
    overrides = ["policy=sled", "network=lte"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        compose("config", overrides)
        library = ConfigLibrary(GlobalHydra.instance().config_loader(), {"chips": "hardware/chip"})
        library.named_config("chips", "a100_80gb")
        found = sources.composed_files(library, overrides)
    assert {"config", "policy/sled", "network/lte", "hardware/chip/a100_80gb"} <= set(found)
    assert not [name for name in found if name.startswith("hydra/")]
    assert "policy/synera" not in found
