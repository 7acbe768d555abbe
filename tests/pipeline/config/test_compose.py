"""From a composed configuration to plain data with all stages in one place."""

import os
import subprocess
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipeline.config.compose import written_overrides
from pipeline.config.resolve import register_resolvers, resolve
from pipeline.errors import ConfigError


def config(**change: Any) -> Any:
    register_resolvers()
    node = {
        "model": {"path": "${stage:model}", "stages": {"model": {"_target_": "x", "seed": "${seed}"}}},
        "policy": {"name": "p", "artifacts": {"thresholds": {"_target_": "y", "on": "${workload.profiling}"}}},
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
    assert data["stages"]["thresholds"]["on"] == data["workload"]["profiling"] == {"num_prompts": 3}
    assert data["model"] == {"path": {"_stage_": "model"}}


def test_stages_that_have_no_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^policy.artifacts is 3; give its stages by name"):
        resolve(config(policy={"name": "p", "artifacts": 3}))
    with pytest.raises(ConfigError, match=r"^stages is None; give stages by name"):
        resolve(config(stages=None))


def test_two_stages_of_one_name_are_refused() -> None:
    twice = {"name": "p", "artifacts": {"serve": {"_target_": "y"}}}
    with pytest.raises(ConfigError, match=r"^policy.artifacts.serve: another stage has this name already"):
        resolve(config(policy=twice))


@pytest.mark.parametrize("value", ["${nowhere}", "${policy.nothing}", "???"])
def test_an_unresolvable_reference_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^the configuration cannot be resolved: "):
        resolve(config(extra=value))


def test_what_several_references_name_is_resolved_once_and_is_copied_for_each() -> None:
    calls: list[str] = []
    OmegaConf.register_new_resolver("counted", lambda name: calls.append(name) or name, replace=True)
    shared = {"text": "${counted:once}", "list": [1, {"a": None}], "seed": "${seed}"}
    data = resolve(config(shared=shared, first="${shared}", second={"third": "${first}"}))
    plain = {"text": "once", "list": [1, {"a": None}], "seed": 5}
    assert [data["shared"], data["first"], data["second"]["third"]] == [plain] * 3
    assert calls == ["once"]
    data["first"]["list"][1]["a"] = 7
    assert [data["shared"], data["second"]["third"]] == [plain] * 2


def test_a_configuration_is_resolved_as_omegaconf_would() -> None:
    node = {"a": {"b": ["${c}", "${c.d}"], 3: True}, "c": {"d": [0.5, "x"], "e": "${a.b.1}"}, "stages": {}}
    cfg = OmegaConf.create(node)
    assert resolve(cfg) == OmegaConf.to_container(cfg, resolve=True)


def test_groups_may_be_absent() -> None:
    cfg = config()
    del cfg["hardware"]
    assert "hardware" not in resolve(cfg)


def test_resolve_does_not_change_its_argument() -> None:
    cfg = config()
    resolve(cfg)
    assert "stages" in cfg.model
    assert "artifacts" in cfg.policy


def test_worker_processes_of_a_launcher_resolve_the_number_of_the_commands_process() -> None:
    """Else each would make a folder of its own for the jobs of one sweep."""
    program = (
        "import os, subprocess, sys; from omegaconf import OmegaConf; from pipeline.config.resolve import "
        "register_resolvers; register_resolvers(); print(OmegaConf.create({'a': '${process:}'}).a, flush=True); "
        "sys.argv[1:] and subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    env = {key: value for key, value in os.environ.items() if key != "TANDEM_PROCESS"}
    done = subprocess.run([sys.executable, "-c", program, program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [done.stdout.split()[0]] * 2


def test_a_machine_is_another_one_with_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was measured on the first one is found for the second."""
    register_resolvers()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    found = {}
    for name in ("A100", "H100"):
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device, name=name: f"{name} at {device}")
        cfgs = [OmegaConf.create({"accelerator": where, "a": "${machine:}"}) for where in ("cpu", "cuda:1")]
        found[name] = [cfg.a for cfg in cfgs]
    assert found["A100"][0] == found["H100"][0]
    assert found["A100"][1] == f"{found['A100'][0]}, gpu A100 at cuda:1"
    assert found["H100"][1] != found["A100"][1]


def test_written_overrides_keep_their_references() -> None:
    register_resolvers()
    hydra = OmegaConf.create({"overrides": {"task": ["policy=x", "policy.offload.scorer.path=${stage:router_1}"]}})
    assert written_overrides(hydra) == ["policy=x", "policy.offload.scorer.path=${stage:router_1}"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({}, (24, 16)),
        ({"prompt_lengths": {"mean": 499.6, "std": 400}}, (500, 16)),
        ({"full_length_answers": True}, (24, 64)),
        ({"answer_lengths": {"mean": 30}}, (24, 30)),
        ({"answer_lengths": {"mean": 300}}, (24, 64)),
    ],
)
def test_a_policy_expects_the_lengths_that_a_simulation_draws(outcomes: Any, expected: tuple[int, int]) -> None:
    register_resolvers()
    wanted = {"prompt": "${expected_prompt_tokens:24}", "answer": "${expected_answer_tokens:16}"}
    found = OmegaConf.create({"runtime": {"outcomes": outcomes}, "workload": {"max_new_tokens": 64}, **wanted})
    assert (found.prompt, found.answer) == expected
