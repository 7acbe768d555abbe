"""Fixed overrides beside a swept group belong to the jobs."""

import gc
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from omegaconf import DictConfig

from pipeline.config.collector import collector_paused
from pipeline.config.multirun import composed_once, defer_to_jobs


@pytest.mark.parametrize("word", ["policy/lookahead=none", "policy.draft.k=8", "+policy.name=x", "policy.ids=[1,2]"])
@pytest.mark.parametrize("swept", ["policy=synera,sled", "policy=glob(*)", "policy=choice(synera,sled)"])
def test_a_slot_or_value_for_all_swept_policies_is_a_sweep_of_one_value(word: str, swept: str) -> None:
    key, value = word.split("=")
    deferred = f"{key}=choice({value})"
    assert defer_to_jobs([swept, word, "-m"]) == [swept, deferred, "-m"]
    assert defer_to_jobs([word, swept, "--multirun"]) == [deferred, swept, "--multirun"]


@pytest.mark.parametrize(
    "argv",
    [
        ["policy=synera", "policy.draft.k=8,16", "policy/lookahead=none", "-m"],
        ["policy=synera,sled", "hardware=wisp", "network.uplink_mbps=10", "seed=1", "hydra.verbose=true", "-m"],
        ["policy=synera,sled", "policy.draft.k=4,8", "~policy.draft.k", "policy.name=", "-m"],
        ["policy=synera,sled", "policy.draft.k=8"],
        ["policy=synera,sled", "policy.draft.k=[", "-m"],
    ],
)
def test_all_other_words_stay_as_they_are(argv: list[str]) -> None:
    assert defer_to_jobs(argv) == argv


def test_what_an_experiment_sweeps_counts(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "_base.yaml").write_text("hydra: {sweeper: {params: {policy: 'sled,synera'}}}")
    (folder / "mine.yaml").write_text("defaults: [_base, _self_]\nseed: 1")
    argv = ["+experiment=mine", "policy.draft.k=8", "-m", "--config-dir", str(tmp_path)]
    assert defer_to_jobs(argv) == ["+experiment=mine", "policy.draft.k=choice(8)", *argv[2:]]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("variant/mine/kind=a,b", "+variant/mine/kind=a,b"),
        ("+variant/mine/kind=a", "+variant/mine/kind=a"),
        ("++seed=0", "seed=0"),
        ("variant/mine/kinds=a", "variant/mine/kinds=a"),
    ],
)
def test_what_replaces_a_sweep_of_an_experiment_is_spelled_as_there(tmp_path: Path, given: str, meant: str) -> None:
    """Hydra would sweep both, each job of one beside each of the other."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text("hydra: {sweeper: {params: {+variant/mine/kind: 'a,b,c', seed: '0,1'}}}")
    assert defer_to_jobs(["+experiment=mine", given, "-m", f"--config-dir={tmp_path}"])[1] == meant
    assert defer_to_jobs(["+experiment=mine", given, f"--config-dir={tmp_path}"])[1] == given  # no multirun
    (folder / "own.yaml").write_text("defaults: [mine]\nhydra: {mode: MULTIRUN}")
    assert defer_to_jobs(["+experiment=own", given, f"--config-dir={tmp_path}"])[1] == meant
    assert defer_to_jobs(["+experiment=own", given, f"--config-dir={tmp_path}", "hydra.mode=RUN"])[1] == given


@pytest.mark.parametrize("text", ["a: [1\nb: 2\n", "- a\n", "hydra: 3\ndefaults: [absent]\n", ""])
def test_a_file_that_is_no_experiment_is_left_to_hydra(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    argv = ["+experiment=mine", "policy.draft.k=8", "-m", f"--config-dir={tmp_path}"]
    assert defer_to_jobs(argv) == argv


def test_a_sweep_over_variants_may_choose_any_group() -> None:
    argv = ["+variant/synera/method=hybrid,synera", "workload.num_prompts=4", "-m"]
    assert defer_to_jobs(argv)[1] == "workload.num_prompts=choice(4)"


def test_a_sweep_composes_each_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[list[str]] = []

    def compose(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        composed.append(sweep_overrides)
        return DictConfig({"job": len(composed)})

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", compose)
    loader, master, jobs = (
        ConfigLoaderImpl(ConfigSearchPathImpl()),
        DictConfig({}),
        [["seed=0"], ["seed=1"], ["seed=0"]],
    )
    with collector_paused(), composed_once(["-m", "seed=0,1,0"]):
        checked = [loader.load_sweep_config(master, job) for job in jobs[:2]]
        launched = [loader.load_sweep_config(master, job) for job in jobs[:2]]
        assert [job is other for job, other in zip(checked, launched, strict=True)] == [True, True]
        assert composed == jobs[:2]
        assert gc.isenabled()  # what a sweep composes is collected
        loader.load_sweep_config(master, jobs[2])
        assert composed == jobs  # what was launched once is composed anew
    assert ConfigLoaderImpl.load_sweep_config is compose
