"""How long a stage will take: from earlier builds, else from its sizes."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts import estimates, manifest
from pipeline.artifacts.estimates import PeakMemory, estimate, num_parameters
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import CONTENT, Stage
from tests.support.conf_files import CONF, read_yaml

SIZES = {"hidden_size": 256, "layers": 8, "intermediate_size": 512}
PARAMETERS = 8 * (4 * 256**2 + 3 * 256 * 512)
SIMULATED = {"_target_": read_yaml(CONF / "runtime" / "simulated.yaml")["_target_"]}


def model(steps: int = 400, **args: Any) -> Stage:
    recipe = {"steps": steps, "batch_size": 16, "row_tokens": 128}
    return Stage("model", "train", {"architecture": SIZES, "recipe": recipe, **args})


def served(num_prompts: int = 10, **args: Any) -> Stage:
    workload = {"num_prompts": num_prompts, "max_new_tokens": 64}
    timed = {"architecture": {**SIZES, "hidden_size": 8192}}
    trained = model()
    return Stage(
        "serve", "serve", {"m": {"_stage_": "model"}, "w": workload, "timed": timed, **args}, 1, {"model": trained}
    )


def built(stage: Stage, seconds: float, folder: Path, memory_nbytes: int | None = None) -> Manifest:
    folder.mkdir()
    (folder / "file").write_text("x")
    manifest.write_manifest(stage, folder, seconds, memory_nbytes)
    found = manifest.read_manifest(folder)
    assert found is not None
    return found


def test_parameters_are_those_of_models_that_are_trained_or_run_not_of_those_that_are_timed():
    assert num_parameters(model()) == PARAMETERS
    assert num_parameters(served()) == PARAMETERS


def test_training_takes_six_operations_a_parameter_and_token():
    found = estimate(model(), [], lambda: 1e11)
    assert found.seconds == pytest.approx(6 * PARAMETERS * 400 * 16 * 128 / 1e11 + 400 * estimates.STEP_S)
    assert not found.learned
    assert found.memory_nbytes > estimates.BASE_NBYTES


def test_sizes_that_are_not_given_have_a_default():
    stage = Stage("model", "train", {"architecture": {"hidden_size": 256, "layers": 8}, "recipe": {"steps": 400}})
    parameters = 8 * (4 + 3 * 4) * 256**2
    assert num_parameters(stage) == parameters
    found = estimate(stage, [], lambda: 1e11)
    assert found.seconds == pytest.approx(6 * parameters * 400 * 64 / 1e11 + 400 * estimates.STEP_S)


def test_a_number_that_is_not_finite_is_not_known():
    assert estimates._value({"steps": float("inf"), "more": {"steps": 3}}, "steps") == 3


@pytest.mark.parametrize("name", ["load_test", "search"])
def test_the_prompts_of_a_workload_do_not_decide_how_long_a_load_test_takes(name: str, tmp_path: Path) -> None:
    """Its window and its seeds do."""
    small, large = (
        Stage("load", "measure", {name: {"seeds": [0]}, "w": {"num_prompts": n, "max_new_tokens": 64}})
        for n in (10, 1000)
    )
    assert estimate(large, [], lambda: 1e11).seconds == estimates.LOAD_TEST_S
    assert estimate(large, [built(small, 16.0, tmp_path / "small")], lambda: 1e11).seconds == 16.0


def test_scoring_the_clock_takes_as_long_as_its_fits_to_each_row(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("row\n" * 600)
    args = {"speeds": {CONTENT: "a digest", "path": str(table)}}
    target = read_yaml(CONF / "experiment" / "clock.yaml")["stages"]["clock_scores"]["_target_"]
    scored, other = Stage("scores", target, args), Stage("scores", "other", args)
    assert estimate(scored, [], lambda: 1e11).seconds == pytest.approx(estimates.OTHER_S + 15)
    assert estimate(other, [], lambda: 1e11).seconds == estimates.OTHER_S


def test_serving_takes_a_forward_for_each_token_and_a_simulation_far_less():
    real, simulated = (estimate(served(**more), [], lambda: 1e11) for more in ({}, {"runtime": SIMULATED}))
    assert real.seconds > 10 * 64 * estimates.FORWARD_S
    assert simulated.seconds < real.seconds / 1.2


def test_a_simulation_takes_time_for_each_token_and_half_the_memory():
    found = estimate(served(runtime=SIMULATED), [], lambda: 1e11)
    assert found.seconds == pytest.approx(estimates.OTHER_S + 640 * estimates.EVENT_S)
    assert found.memory_nbytes == estimates.BASE_NBYTES / 2


def test_an_earlier_build_counts_more_than_sizes_and_is_scaled_by_the_tokens(tmp_path: Path):
    earlier = [built(model(steps=100), 50.0, tmp_path / "a", 5_000_000), built(model(steps=4), 1e6, tmp_path / "b")]
    found = estimate(model(steps=100, seed=1), earlier, lambda: 1.0)
    assert (found.seconds, found.memory_nbytes, found.learned) == (50.0, 5_000_000, True)
    assert estimate(model(steps=200, seed=1), earlier[:1], lambda: 1.0).seconds == 100.0


def test_a_build_whose_memory_was_not_measured_takes_what_its_sizes_say(tmp_path: Path):
    known = [built(model(steps=100), 50.0, tmp_path / "a")]
    memory_nbytes = estimate(model(), [], lambda: 1e11).memory_nbytes
    assert estimate(model(steps=200), known, lambda: 1e11).memory_nbytes == memory_nbytes


def test_an_estimate_is_a_tenth_of_a_second_or_more(tmp_path: Path):
    assert estimate(model(), [built(model(seed=1), 0.0, tmp_path / "a")], lambda: 1e11).seconds == 0.1


def hub_run(cloud: str, parameters: int, **args: Any) -> Stage:
    """A stage that runs a pair of the Hub's."""
    sides = {"device": ("Small", 6 * 10**8), "cloud": (cloud, parameters)}
    pair = {
        side: {
            "_target_": "serving.engines.models.ModelConfig", "hub": hub, "path": None, "dtype": "bf16",
            "quantization": "none", "timed_architecture": {"name": hub, "published_parameters": count},
        }
        for side, (hub, count) in sides.items()
    }  # fmt: skip
    workload = {"num_prompts": 10, "max_prompt_tokens": 100, "max_new_tokens": 64}
    return Stage("serve", "serve", {"pair": pair, "w": workload, **args})


def test_a_run_of_another_model_tells_nothing_and_weights_count_by_their_dtype(tmp_path: Path) -> None:
    small, large = hub_run("Large-1B", 10**9), hub_run("Large-8B", 8 * 10**9)
    earlier = [built(small, 24.0, tmp_path / "a", 600_000_000)]
    assert estimate(hub_run("Large-1B", 10**9, seed=1), earlier, lambda: 1e11).memory_nbytes == 600_000_000
    found = estimate(large, earlier, lambda: 1e11, estimates.pair_parameters([large]))
    assert not found.learned
    assert found.memory_nbytes == pytest.approx(estimates.BASE_NBYTES + 2 * 8.6e9)
    assert found.seconds > 2 * 8.6e9 * 10 * 164 / 1e11


def test_weights_of_quantised_models_and_of_servers_take_less() -> None:
    whole = hub_run("Large-8B", 8 * 10**9)
    found = {}
    for name, change in {"nf4": {"quantization": "nf4"}, "server": {"server": {"base_url": "http://there"}}}.items():
        pair = {**whole.args["pair"], "cloud": {**whole.args["pair"]["cloud"], **change}}
        stage = Stage("serve", "serve", {**whole.args, "pair": pair})
        found[name] = estimate(stage, [], lambda: 1e11, estimates.pair_parameters([stage])).memory_nbytes
    assert found["nf4"] == pytest.approx(estimates.BASE_NBYTES + 2 * 6e8 + 4e9)
    assert found["server"] == pytest.approx(estimates.BASE_NBYTES + 2 * 6e8)


def test_a_simulation_is_estimated_by_one_of_other_models(tmp_path: Path) -> None:
    runtime = {"_target_": SIMULATED["_target_"]}
    earlier = [built(hub_run("Large-1B", 10**9, runtime=runtime), 24.0, tmp_path / "a", 300_000_000)]
    assert estimate(hub_run("Large-8B", 8 * 10**9, runtime=runtime), earlier, lambda: 1e11).seconds == 24.0


def test_a_build_in_another_runtime_or_of_a_model_made_otherwise_tells_nothing(tmp_path: Path):
    emulated, simulated = ({"runtime": {"_target_": name}} for name in ("Emulated", "Simulated"))
    earlier = [built(served(**emulated), 9000.0, tmp_path / "a")]
    assert estimate(served(seed=1, **emulated), earlier, lambda: 1e11).seconds == 9000.0
    assert not estimate(served(seed=1, **simulated), earlier, lambda: 1e11).learned

    trained = Stage("cloud_model", "train", {"recipe": {}})
    args = {"model": {"_stage_": "cloud_model"}, "num_prompts": 10}
    earlier = [built(Stage("trace", "trace", args, inputs={"cloud_model": trained}), 5.0, tmp_path / "b")]
    unpacked = Stage("trace", "trace", args, inputs={"cloud_model": Stage("cloud_model", "convert", {"source": "it"})})
    retrained = Stage(
        "trace", "trace", args, inputs={"cloud_model": Stage("cloud_model", "train", {"recipe": {}, "seed": 1})}
    )

    def maker(name: str, digest: str) -> str | None:
        return {("cloud_model", trained.digest): "train"}.get((name, digest))

    assert not estimate(unpacked, earlier, lambda: 1e11, maker=maker).learned
    assert estimate(retrained, earlier, lambda: 1e11, maker=maker).seconds == 5.0


def test_an_input_of_unknown_origin_is_comparable(tmp_path: Path):
    """It was removed since."""
    args = {"model": {"_stage_": "model"}, "num_prompts": 10}
    first, second = (Stage("trace", "trace", args, inputs={"model": model(seed=seed)}) for seed in (1, 2))
    earlier = [built(first, 5.0, tmp_path / "a")]
    assert estimate(second, earlier, lambda: 1e11, maker=lambda *_: None).seconds == 5.0


def test_a_served_model_reads_its_prompts_at_once_and_its_weights_for_each_token():
    workload = {"num_prompts": 40, "max_prompt_tokens": 1000, "max_new_tokens": 64}
    short, whole = (estimate(published("serve", w=w), [], lambda: 1e11, 2e8).seconds
                    for w in ({**workload, "max_prompt_tokens": 0}, workload))  # fmt: skip
    assert whole - short == pytest.approx(2 * 1e8 * 40_000 / 1e11 + 40 * 64 * 4 * 1e8 / 1e10)


def test_checkpoints_of_files_count_by_their_configuration(tmp_path: Path):
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512, "vocab_size": 100}'
    )
    stage = Stage("serve", "serve", {"path": {"_content_": "sha", "path": str(tmp_path)}})
    assert num_parameters(stage) == PARAMETERS + 25600


def test_the_fastest_measurement_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for measured, kept in ((2e9, 2e9), (1e9, 2e9), (3e9, 3e9)):
        measure_as(measured, tmp_path, monkeypatch)
        assert estimates.expected_flops_per_s(tmp_path) == kept
        os.utime(tmp_path / estimates.SPEED_FILE, (0, 0))


def test_a_measurement_counts_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measure_as(2e9, tmp_path, monkeypatch)
    measure_as(3e9, tmp_path, monkeypatch)
    assert estimates.expected_flops_per_s(tmp_path) == 2e9


def test_before_the_first_build_each_core_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5})
    assert estimates.expected_flops_per_s(tmp_path) == 3 * estimates.CORE_FLOPS_PER_S


def test_a_process_without_numpy_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    estimates.measure_speed(tmp_path)
    assert not (tmp_path / estimates.SPEED_FILE).exists()


def measure_as(flops_per_s: float, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setitem(sys.modules, "numpy", np)
    monkeypatch.setattr(estimates, "_measure_flops_per_s", lambda: flops_per_s)
    estimates.measure_speed(root)


def test_the_speed_is_not_asked_for_where_an_earlier_build_tells(tmp_path: Path):
    def measure() -> float:
        raise AssertionError("asked for nothing")

    assert estimate(model(steps=100), [built(model(steps=100), 50.0, tmp_path / "a")], measure).seconds == 50.0


def test_peak_memory_is_what_was_used_since_the_reset():
    memory = PeakMemory()
    memory.reset()
    before = memory.read_nbytes()
    block = bytearray(80_000_000)
    after = memory.read_nbytes()
    del block
    if before is None or after is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert after - before > 60_000_000
    memory.reset()
    again = memory.read_nbytes()
    assert again is not None
    assert again < after - 40_000_000


def test_peak_memory_is_told_in_kibibytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "VmPeak:\t 9 kB\nVmHWM:\t     100 kB\n")
    assert PeakMemory().read_nbytes() == 102_400


def published(stage: str, **args: Any) -> Stage:
    """A stage that runs a pair which nothing here trains."""
    checkpoint = {"_target_": "serving.engines.models.Checkpoint", "path": {"_stage_": "cloud_model"}}
    converted = Stage("cloud_model", "convert", {"source": "a file"})
    return Stage(stage, stage, {"model": checkpoint, **args}, inputs={"cloud_model": converted})


def test_a_pair_that_nothing_here_trains_has_the_parameters_that_it_is_timed_by():
    recorded = published("self_prompts", answer_tokens=44_000)
    serve = published("serve", pair=[{"timed_architecture": {"name": n, "published_parameters": 1e8}} for n in "ab"])
    assert estimates.pair_parameters([recorded, serve]) == 2e8
    assert estimates.pair_parameters([recorded, serve, model()]) == 0
    blind, found = (estimate(recorded, [], lambda: 1e11, pair) for pair in (0.0, 2e8))
    assert found.seconds - blind.seconds == pytest.approx(2 * 1e8 * 44_000 / 1e11)  # of one of two models
    assert found.memory_nbytes - blind.memory_nbytes == 4 * 1e8


def test_two_models_of_a_pair_count_once_each_however_often_they_are_named():
    thrice = published("serve", more=2 * [{"_target_": "serving.engines.models.Checkpoint"}], answer_tokens=10)
    assert estimate(thrice, [], lambda: 1e11, 2e8).memory_nbytes == estimates.BASE_NBYTES + 4 * 2e8


def test_healing_takes_its_tokens_from_the_answers_that_it_learns():
    recorded = published("self_prompts", answer_tokens=44_000)
    healed = Stage("pruned", "prune", {"model": {"_target_": "serving.engines.models.Checkpoint"},
                   "self_prompts": {"_stage_": "self_prompts"}, "recipe": {"tokens_per_step": 1024}},
                   inputs={"self_prompts": recorded})  # fmt: skip
    found = estimate(healed, [], lambda: 1e11, 2e8)
    assert found.seconds == pytest.approx(6 * 1e8 * 44_000 / 1e11 + 44_000 / 1024 * estimates.STEP_S)
    assert found.memory_nbytes == estimates.BASE_NBYTES + 16 * 1e8


def test_a_model_that_another_function_made_says_nothing(tmp_path: Path):
    """One that was unpacked in seconds, of one that is trained."""
    unpacked = Stage("model", "unpack", {"source": "a file"})
    assert not estimate(model(), [built(unpacked, 5.0, tmp_path / "a")], lambda: 1e11).learned


@pytest.mark.parametrize("config", ["[]", '{"hidden_size": null, "vocab_size": "many", "intermediate_size": [1]}'])
def test_a_checkpoint_of_unknown_sizes_has_none(tmp_path: Path, config: str):
    (tmp_path / "config.json").write_text(config)
    assert num_parameters(Stage("serve", "serve", {"m": {CONTENT: "digest", "path": str(tmp_path)}})) == 0
