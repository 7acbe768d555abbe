"""From a composed configuration to plain data with all stages in one place."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from pipeline.config.compose import register_resolvers, resolve
from pipeline.errors import ConfigError


def config(**change: Any) -> Any:
    register_resolvers()
    node = {
        "model": {"path": "${stage:model}", "stages": {"model": {"_target_": "x", "seed": "${seed}"}}},
        "policy": {"name": "p", "artifacts": {"thresholds": {"_target_": "y", "on": "${profiling}"}}},
        "hardware": {"chip": "orin"},
        "workload": {"num_prompts": 3, "profiling": {"num_prompts": "${workload.num_prompts}"}},
        "stages": {"serve": {"_target_": "z", "policy": "${policy}", "workload": "${workload}"}},
        "seed": 5,
    }
    return OmegaConf.create(node | change)


def test_stages_of_all_groups_are_collected() -> None:
    data = resolve(config())
    assert list(data["stages"]) == ["serve", "model", "thresholds"]
    assert data["stages"]["model"] == {"_target_": "x", "seed": 5}


def test_stage_declarations_are_removed_from_the_configured_groups() -> None:
    data = resolve(config())
    assert data["stages"]["serve"] == {"_target_": "z", "policy": {"name": "p"}, "workload": {"num_prompts": 3}}
    assert data["stages"]["thresholds"]["on"] == data["profiling"] == {"num_prompts": 3}
    assert data["model"] == {"path": {"_stage_": "model"}}


def test_two_stages_of_one_name_are_refused() -> None:
    twice = {"name": "p", "artifacts": {"serve": {"_target_": "y"}}}
    with pytest.raises(ConfigError, match=r"^policy.artifacts.serve: another stage has this name already"):
        resolve(config(policy=twice))


@pytest.mark.parametrize("value", ["${nowhere}", "${policy.nothing}", "???"])
def test_an_unresolvable_reference_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^the configuration cannot be resolved: "):
        resolve(config(extra=value))


def test_groups_may_be_absent() -> None:
    cfg = config()
    del cfg["hardware"]
    assert "hardware" not in resolve(cfg)


def test_resolve_does_not_change_its_argument() -> None:
    cfg = config()
    resolve(cfg)
    assert "stages" in cfg.model
    assert "artifacts" in cfg.policy
