"""Files of the same choice of groups are merged once, and composed as Hydra composes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from pipeline.config import merged_groups
from pipeline.config.arguments import conf_dir, normalise
from pipeline.config.compose import prepare_hydra
from pipeline.config.merged_groups import keep_merged_groups


@pytest.fixture(autouse=True)
def _hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra as it is, which a test may have keep what it merges; nothing is kept from another test."""
    prepare_hydra()
    monkeypatch.setattr(config_loader_impl, "create_defaults_list", merged_groups._hydras_list)
    monkeypatch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", merged_groups._hydras_merge)
    monkeypatch.setattr(merged_groups, "_kept", type(merged_groups._kept)())


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that Hydra merges files."""
    found: list[object] = []

    def merge(loader: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        found.append(defaults)
        return hydras(loader, defaults, repo)

    hydras = merged_groups._hydras_merge
    monkeypatch.setattr(merged_groups, "_hydras_merge", merge)
    keep_merged_groups()
    return found


def _composed(overrides: Sequence[str], folder: Path | None = None) -> str:
    with initialize_config_dir(str(folder or conf_dir()), version_base="1.3"):
        return OmegaConf.to_yaml(compose("config", list(overrides), return_hydra_config=True))


SWEPT = [
    ["policy=synera", "seed=1"],
    ["policy=synera", "seed=2", "+own.key=3", "policy.offload.budget=0.3"],
    ["policy=synera", "policy/draft=lookup"],
    ["policy=synera", "~workload.num_prompts"],
    ["policy=synera", "workload={num_prompts: 7}"],
    ["+experiment=hat/fig6", "+variant/hat/method=hat", "workload.arrivals.rate_per_s=4"],
    ["+experiment=hat/fig6", "+variant/hat/method=hat", "workload.arrivals.rate_per_s=5"],
    ["+experiment=hat/fig6", "+variant/hat/method=u_shape", "workload.arrivals.rate_per_s=5"],
]


def test_each_job_is_composed_as_by_hydra() -> None:
    hydras = [_composed(normalise(words)) for words in SWEPT]
    keep_merged_groups()
    for _ in range(2):
        assert [_composed(normalise(words)) for words in SWEPT] == hydras
    assert len(merged_groups._kept) == 4


def test_files_are_merged_once_for_values_that_differ(merges: list[object]) -> None:
    seeds = [OmegaConf.create(_composed(["policy=synera", f"seed={seed}"])).seed for seed in range(4)]
    assert (seeds, len(merges)) == ([0, 1, 2, 3], 1)
    _composed(["policy=wisp", "seed=0"])
    assert len(merges) == 2


def test_no_more_is_kept_than_allowed(merges: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_groups, "MAX_KEPT", 2)
    for policy in ("synera", "wisp", "sled", "wisp", "sled", "synera"):
        _composed([f"policy={policy}"])
    assert (len(merged_groups._kept), len(merges)) == (2, 4)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text + "\n")


def _own_key(folder: Path, *overrides: str) -> Any:
    return OmegaConf.create(_composed(overrides, folder)).get("a")


@pytest.mark.parametrize("changed", ["config", "db/big"])
def test_a_changed_file_is_merged_anew(tmp_path: Path, merges: list[object], changed: str) -> None:
    _write(tmp_path, {"config": "defaults: [db@_global_: big, _self_]", "db/big": "a: 1"})
    assert _own_key(tmp_path) == 1
    _write(tmp_path, {changed: "a: 22" if changed == "db/big" else "defaults: [db@_global_: big, _self_]\na: 22"})
    assert (_own_key(tmp_path), len(merges)) == (22, 2)


def test_a_file_that_was_not_there_is_found(tmp_path: Path, merges: list[object]) -> None:
    _write(tmp_path, {"config": "defaults: [optional db@_global_: big, _self_]", "db/small": "a: 3"})
    assert _own_key(tmp_path) is None
    _write(tmp_path, {"db/big": "a: 1"})
    assert (_own_key(tmp_path), len(merges)) == (1, 2)


def test_a_job_changes_nothing_for_the_next(merges: list[object]) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        first = compose("config", ["policy=synera"])
        kept = OmegaConf.to_yaml(first)
        first.policy.offload.budget, first.workload.num_prompts = 0.9, 7
        OmegaConf.set_readonly(first.policy, True)
        second = compose("config", ["policy=synera"])
    assert (OmegaConf.to_yaml(second), len(merges)) == (kept, 1)
    assert not OmegaConf.is_readonly(second.policy)


@pytest.mark.parametrize(
    "words", ["policy=none", "policy/no_group=synera", "++policy=synera", "no_key=3", "~network=lte"]
)
def test_what_hydra_refuses_is_refused_in_its_words_each_time(words: str) -> None:
    def message() -> str:
        with pytest.raises(ConfigCompositionException) as found:
            _composed(["policy=synera", words])
        return str(found.value)

    hydras = message()
    keep_merged_groups()
    assert [message(), message()] == [hydras] * 2


def test_folders_that_change_while_they_are_read_are_merged_by_hydra(
    merges: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_folder: str) -> Iterator[str]:
        raise FileNotFoundError

    monkeypatch.setattr(merged_groups, "file_stamps", gone)
    for _ in range(2):
        assert OmegaConf.create(_composed(["policy=synera", "seed=3"])).seed == 3
    assert not merged_groups._kept
