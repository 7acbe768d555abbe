"""What is found out before any work."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config import preflight
from pipeline.errors import ConfigError


def stage(**resources: Any) -> Any:
    return SimpleNamespace(resources=resources)


def is_cached(_stage: Any) -> bool:
    return True


def is_missing(_stage: Any) -> bool:
    return False


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_serving_on_a_gpu_that_is_not_there_is_refused_although_its_result_is_cached():
    with pytest.raises(ConfigError, match=r"accelerator is cuda, and torch .*; set accelerator=cpu\."):
        preflight.check_accelerators({"accelerator": "cuda"}, [], is_cached)


@pytest.mark.parametrize("accelerator", ["gpu", "cudaa", "CPU", None])
def test_an_accelerator_that_is_no_device_is_refused(accelerator: str | None):
    with pytest.raises(ConfigError, match=rf"accelerator is {accelerator!r}; it is the torch device.*trainer=gpu"):
        preflight.check_accelerators({"accelerator": accelerator}, [], is_cached)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_of_training_takes_is_refused(seed: int):
    with pytest.raises(ConfigError, match=rf"training\.seed is {seed}; a whole number from 0 to 4294967295"):
        preflight.check_training_seed({"training": {"seed": seed}})
    for taken in ({"training": {"seed": 2**32 - 1}}, {"training": {"seed": 0}}, {}):
        preflight.check_training_seed(taken)


@pytest.mark.usefixtures("no_gpu")
def test_training_on_a_gpu_that_is_not_there_is_refused_only_where_something_is_to_train():
    trained = stage(trainer={"accelerator": "gpu"})
    with pytest.raises(ConfigError, match=r"trainer\.accelerator is gpu.*; set trainer=cpu"):
        preflight.check_accelerators({"accelerator": "cpu"}, [stage(accelerator="cpu"), trained], is_missing)
    preflight.check_accelerators({"accelerator": "cpu"}, [trained], is_cached)


def test_with_a_gpu_nothing_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    preflight.check_accelerators({"accelerator": "cuda:0"}, [stage(trainer={"accelerator": "gpu"})], is_missing)


@pytest.mark.parametrize(
    ("place", "value", "note"),
    [
        ("network.uplink_mbps", 60_000_000, "network.uplink_mbps is 6e+07: it is Mbit/s, usually 0.01 to 100000"),
        ("network.loss", 1, "a share of the packets, 0.01 for 1 %"),
        ("network.uplink_mbps", 60, None),
        ("network.uplink_mbps", "fast", None),
    ],
)
def test_a_value_in_another_unit_gets_a_note(place: str, value: Any, note: str | None):
    group, _, key = place.partition(".")
    found = preflight.unusual_values({group: {key: value}})
    assert len(found) == (note is not None)
    assert note is None or note in found[0]


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (("+seeed=4",), ["nothing reads +seeed, so it has no effect. Did you mean seed?"]),
        (("+worklod.num_prompts=6", "seed=3"),
         ["nothing reads +worklod.num_prompts, so it has no effect. Did you mean workload?"]),
        (("+workload.skip=6", "+policy=sled", "+draws=clock", "+trial=7", "+page@page=none"), []),
        (("+mine=large", "+variant/mine/kind=a"), []),  # a group of the user's, and one of conf/
        (("+lab.budget=3", "+label=a"), []),  # which a file refers to
    ],
)  # fmt: skip
def test_a_word_that_nothing_reads_gets_a_note(words: tuple[str, ...], noted: list[str]) -> None:
    composed = str({"policy": {"offload": {"budget": "${oc.select:lab.budget,0.2}"}}, "rows": "{label}"})
    assert preflight.unread_words(words, {"mine", "policy"}, lambda: composed) == noted


def test_figures_of_a_users_chip_in_another_unit_get_a_note() -> None:
    """Those of the project are as they are meant: one has no limits at all."""
    node = {"memory_gb": 16e9, "software": {"own": {"forward_overhead_s": 2}}, "modes": {"m": {"memory_gbps": 17.1}}}
    found = preflight.unusual_chips(
        {("hardware/chip", "farm"): node, ("hardware/chip", "instant"): {"memory_gbps": 1e9}}
    )
    assert found == [
        "chip farm: memory_gb is 1.6e+10: it is GB, usually 0.1 to 10000. Is it meant so?",
        "chip farm: software.own.forward_overhead_s is 2: it is seconds of each forward, usually 0 to 0.2. Is it "
        "meant so?",
    ]
    assert preflight.unusual_chips({("network", "farm"): node}) == []


def test_nothing_is_chosen_on_sealed_prompts() -> None:
    preflight.check_chosen_on_open_prompts({"workload": {"dataset": {"evaluation": "open"}}}, "a search")
    with pytest.raises(ConfigError, match=r"a search chooses .* Set workload.dataset.evaluation=open"):
        preflight.check_chosen_on_open_prompts({"workload": {"dataset": {"evaluation": "sealed"}}}, "a search")


GSM8K = {"_target_": "serving.workload.datasets.gsm8k.GSM8K", "evaluation": "open"}
BLANK = {"_target_": "serving.studies.capacity.cases.BlankDataset"}


def plan_of(served: dict[str, Any], profiled: dict[str, Any]) -> Any:
    """Thresholds of prompts 40 to 99, and a run that serves prompts 0 to 39, but for what is given."""
    common = {"dataset": GSM8K, "seed": 0}
    asked = {**common, "skip": 0, "num_prompts": 40, **served}
    learned = {"_target_": preflight.PROFILING, **common, "skip": 40, "num_prompts": 60, **profiled}
    stages = {
        "thresholds": SimpleNamespace(name="thresholds", args={"workload": learned}),
        "serve": SimpleNamespace(name="serve", args={"setup": {"workload": asked}}),
    }
    return SimpleNamespace(stages=stages, kinds={"thresholds": "profile", "serve": "serve"})


@pytest.mark.parametrize(
    ("served", "profiled", "said"),
    [
        (
            {"skip": 30},
            {},
            r"takes prompts 40 to 99 of a draw, and 30 to 69 are served\. Set workload.profiling.skip=70",
        ),
        ({}, {"skip": 0}, r"Set workload.profiling.skip=40, or workload.dataset.evaluation=sealed\."),
        ({"seed": 1000}, {}, r"workload.seed=1000 and workload.profiling.seed=0 may draw the same ones\. Set both"),
    ],
)
def test_prompts_that_a_stage_learns_from_are_not_served(
    served: dict[str, Any], profiled: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^stage thresholds learns from prompts of the data set.*{said}"):
        preflight.check_profiled_prompts(plan_of(served, profiled))


@pytest.mark.parametrize(
    ("served", "profiled"),
    [
        ({}, {}),
        ({"skip": 100}, {}),
        ({"seed": 1000, "dataset": GSM8K | {"evaluation": "sealed"}}, {}),
        ({"skip": 30, "dataset": BLANK}, {"dataset": BLANK}),
    ],
)
def test_prompts_that_are_apart_are_served(served: dict[str, Any], profiled: dict[str, Any]) -> None:
    preflight.check_profiled_prompts(plan_of(served, profiled))


AVX2 = frozenset({"avx2"})
AVX512 = AVX2 | {"avx512f", "avx512_bf16"}
ARM = frozenset({"asimd", "bf16", "asimdhp"})


@pytest.mark.parametrize(
    ("dtype", "flags", "changes", "noted"),
    [
        ("bf16", AVX2, {}, True),
        ("fp16", AVX512, {}, True),
        ("bf16", AVX512, {}, False),
        ("bf16", ARM, {}, False),
        ("fp16", ARM, {}, False),
        ("fp32", AVX2, {}, False),
        ("bf16", frozenset(), {}, False),
        ("bf16", AVX2, {"backend": "llama_cpp"}, False),
        ("bf16", AVX2, {"server": "a server's address"}, False),
    ],
)
def test_a_dtype_that_the_processor_does_not_multiply_gets_a_note(
    dtype: str, flags: frozenset[str], changes: dict[str, str], noted: bool
):
    config = {
        "accelerator": "cpu",
        "runtime": {"_target_": "serving.runtimes.emulated.Emulated"},
        "model": {"device": {"dtype": "fp32"}, "cloud": {"dtype": dtype, **changes}},
    }
    found = preflight.slow_dtypes(config, lambda: flags)
    assert len(found) == noted
    assert not noted or f"model.cloud.dtype is {dtype}" in found[0]


@pytest.mark.parametrize(("cloud", "noted"), [("fp32", ["device"]), ("bf16", ["device", "cloud"])])
def test_each_model_of_such_a_dtype_gets_a_note(cloud: str, noted: list[str]):
    config = {
        "accelerator": "cpu",
        "runtime": {"_target_": "serving.runtimes.emulated.Emulated"},
        "model": {"device": {"dtype": "bf16"}, "cloud": {"dtype": cloud}},
    }
    found = preflight.slow_dtypes(config, lambda: AVX2)
    assert [note.partition(" is ")[0] for note in found] == [f"model.{role}.dtype" for role in noted]


@pytest.mark.parametrize(
    "changes",
    [
        {"accelerator": "cuda"},
        {"runtime": {"_target_": "serving.runtimes.simulated.Simulated"}},
        {"model": {"device": {"dtype": "fp32"}, "cloud": {"dtype": "bf16", "backend": "llama_cpp"}}},
    ],
)
def test_a_processor_is_not_looked_at_where_it_multiplies_in_no_such_dtype(changes: dict[str, Any]):
    config = {
        "accelerator": "cpu",
        "runtime": {"_target_": "serving.runtimes.emulated.Emulated"},
        "model": {"device": {"dtype": "fp32"}, "cloud": {"dtype": "bf16"}},
    }
    looked: list[bool] = []

    def flags() -> frozenset[str]:
        looked.append(True)
        return AVX2

    assert preflight.slow_dtypes({**config, **changes}, flags) == []
    assert not looked
