"""Every file of conf/workload composes, and names only what its `_target_` takes."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.config.compose import prepare_hydra

CONF = Path(__file__).parents[3] / "conf"
NAMES = sorted(path.stem for path in (CONF / "workload").glob("[!_]*.yaml"))
PUBLIC = set(NAMES) - {"tiny", "smoke", "synthetic", "self_asked"}
"""Those of public data sets, which have a file."""


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(overrides=list(overrides))


def targets(node) -> Iterator[dict]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from targets(value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arrivals", ["closed_loop", "poisson", "azure"])
def test_a_workload_names_the_fields_of_what_it_builds(name, arrivals):
    node = OmegaConf.to_container(composed(f"+workload={name}", f"workload/arrivals={arrivals}"), resolve=False)
    profiling = node["workload"].pop("profiling")
    found = list(targets(node["workload"]))
    assert len(found) == 3
    for one in [*found, *targets(profiling)]:
        module, _, kind = one["_target_"].rpartition(".")
        assert set(one) - {"_target_"} <= {field.name for field in fields(getattr(import_module(module), kind))}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_workload_path_reaches_the_data_set(name):
    workload = composed(f"+workload={name}", "workload.path=some/file").workload
    assert workload.dataset.path == "some/file"


def test_the_embedded_pairs_tasks_come_from_the_corpus_stage():
    workload = OmegaConf.to_container(composed("+workload=smoke"), resolve=False)["workload"]
    assert workload["dataset"]["corpus"] == "${stage:corpus}"
    assert workload["num_prompts"] == 8


def test_composing_a_workload_imports_no_heavy_package():
    modules = sorted(path.stem for path in (CONF.parent / "src/serving/workload").glob("*.py"))
    imports = "; ".join(f"import serving.workload.{name}" for name in modules if name != "__init__")
    heavy = "{'torch', 'numpy', 'pandas', 'transformers', 'datasets', 'rouge_score', 'hydra'}"
    code = f"import sys; {imports}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_policies_are_trained_on_the_open_half_whatever_is_served(name):
    prepare_hydra()
    words = (f"+workload={name}", "workload.path=some/file", "workload.dataset.evaluation=sealed")
    workload = composed(*words).workload
    assert workload.dataset.evaluation == "sealed"
    assert workload.profiling.dataset["evaluation"] == "open"
    assert workload.profiling.dataset["path"] == "some/file"
