"""What is found out before any work: accelerators that this machine lacks, and values in a unit that was not meant."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from pipeline.artifacts.stage import Stage
from pipeline.config.arguments import conf_dir, suggestion
from pipeline.config.build import TARGET, load
from pipeline.config.compose import select
from pipeline.config.plan import Plan
from pipeline.errors import ConfigError

USUAL_RANGES: Mapping[str, tuple[float, float, str]] = {
    "network.uplink_mbps": (0.01, 100_000, "Mbit/s"),
    "network.downlink_mbps": (0.01, 100_000, "Mbit/s"),
    "network.delay_ms": (0, 2_000, "ms, one way"),
    "network.jitter_ms": (0, 1_000, "ms"),
    "network.loss": (0, 0.3, "a share of the packets, 0.01 for 1 %"),
    "decoding.temperature": (0, 2, "a temperature, 0 for greedy"),
    "workload.max_new_tokens": (1, 32_768, "tokens of an answer"),
    "workload.max_prompt_tokens": (1, 1_048_576, "tokens of a prompt"),
    "policy.draft.k": (1, 64, "tokens of a draft"),
}
"""Dotted place -> lowest and highest usual value, and what the value is. A value outside is allowed, and noted."""

CHIPS = "hardware/chip"
CHIP_RANGES: Mapping[str, tuple[float, float, str]] = {
    "memory_gb": (0.1, 10_000, "GB"),
    "memory_gbps": (0.1, 15_000, "GB/s"),
    "fp16_tflops": (0.001, 10_000, "10^12 operations a second"),
    "fp32_tflops": (0.001, 10_000, "10^12 operations a second"),
    "int8_tops": (0.001, 20_000, "10^12 operations a second"),
    "power_w": (0.1, 2_000, "W"),
    "idle_w": (0, 500, "W"),
    "forward_overhead_s": (0, 0.2, "seconds of each forward"),
    "layer_overhead_s": (0, 0.05, "seconds of each layer"),
}
"""The same for figures of a chip, of its modes and of its software."""

_DEVICES = ("cpu", "cuda", "mps", "xpu")
TRIAL = "trial"
"""The key that a search adds to each of its jobs."""
PROFILING = "serving.workload.workload.ProfilingWorkload"

MAX_TRAINING_SEED = 2**32 - 1
"""NumPy takes no seed below 0, and torch none above 2^63, from which trainings keep a factor for their epochs."""

DTYPE_FLAGS: Mapping[str, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}
"""Dtype -> the features of a processor of which one means that it multiplies in that dtype."""


def check_accelerators(config: Mapping[str, Any], stages: Iterable[Stage], is_cached: Callable[[Stage], bool]) -> None:
    """Raises ConfigError if serving, or the training of a stage that is not cached, wants a GPU and torch sees none;
    also for an `accelerator` that is no device of torch, such as the `gpu` of a trainer.
    """
    if str(config["accelerator"]).partition(":")[0] not in _DEVICES:
        raise ConfigError(
            f"accelerator is {config['accelerator']!r}; it is the torch device that serves, cpu or cuda. Training has "
            "its own: trainer=gpu."
        )
    if str(config["accelerator"]).startswith("cuda") and not _sees_gpu():
        raise ConfigError(_no_gpu("accelerator", config["accelerator"], "accelerator=cpu"))
    for stage in stages:
        trainer = stage.resources.get("trainer")
        wants_gpu = isinstance(trainer, dict) and trainer.get("accelerator") == "gpu"
        if wants_gpu and not is_cached(stage) and not _sees_gpu():
            raise ConfigError(_no_gpu("trainer.accelerator", "gpu", "trainer=cpu, or trainer.accelerator=cpu"))


def check_training_seed(config: Mapping[str, Any]) -> None:
    """Raises ConfigError for a seed that one of the generators of training refuses, perhaps after minutes of work."""
    seed = select(config, "training.seed")
    if isinstance(seed, int) and not 0 <= seed <= MAX_TRAINING_SEED:
        raise ConfigError(f"training.seed is {seed}; a whole number from 0 to {MAX_TRAINING_SEED} is wanted.")


def check_chosen_on_open_prompts(config: Mapping[str, Any], chooser: str) -> None:
    """Raises ConfigError if a search or a choice would see the sealed half of its data set."""
    if select(config, "workload.dataset.evaluation") == "sealed":
        raise ConfigError(
            f"{chooser} chooses by what it measures, and nothing is chosen on sealed prompts. Set "
            "workload.dataset.evaluation=open, and serve once with sealed what was found."
        )


def check_profiled_prompts(plan: Plan) -> None:
    """Raises ConfigError if a stage may learn from prompts that the run serves.

    Draws of one data set have no prompt in common if their seed is the same and what they skip keeps them apart.
    """
    for served in (plan.stages[name] for name, kind in plan.kinds.items() if kind == "serve"):
        asked = select(served.args, "setup.workload")
        for stage in plan.stages.values():
            learned = select(stage.args, "workload")
            profiles = isinstance(learned, Mapping) and learned.get(TARGET) == PROFILING
            if asked and profiles and learned["dataset"] == asked["dataset"] and _has_text(asked["dataset"]):
                _check_draws(stage.name, asked, learned)


def _has_text(dataset: Mapping[str, Any]) -> bool:
    """False if all prompts of the data set are blank, so that none is another."""
    return bool(getattr(load(dataset[TARGET], ""), "has_text", True))


def _check_draws(stage: str, served: Mapping[str, Any], profiled: Mapping[str, Any]) -> None:
    learns = f"stage {stage} learns from prompts of the data set that is served"
    sealed = ", or workload.dataset.evaluation=sealed" if "evaluation" in served["dataset"] else ""
    if served["seed"] != profiled["seed"]:
        raise ConfigError(
            f"{learns}, and workload.seed={served['seed']} and workload.profiling.seed={profiled['seed']} may draw the "
            "same ones. Set both to one seed (other prompts of it are served by +workload.skip=NUMBER)"
            f"{sealed}."
        )
    first, end = profiled["skip"], profiled["skip"] + profiled["num_prompts"]
    served_first, served_end = served["skip"], served["skip"] + served["num_prompts"]
    if first < served_end and served_first < end:
        raise ConfigError(
            f"{learns}: it takes prompts {first} to {end - 1} of a draw, and {served_first} to {served_end - 1} are "
            f"served. Set workload.profiling.skip={served_end}{sealed}."
        )


def check_dtypes(config: Mapping[str, Any], plan: Plan, given: Iterable[str]) -> None:
    """Raises ConfigError if one of the overrides `given` chooses a dtype for a checkpoint that no stage loads, since
    llama.cpp runs the model from its file.
    """
    for side in ("device", "cloud"):
        place, model = f"model.{side}.dtype", select(config, f"model.{side}") or {}
        written = any(word.lstrip("+").startswith(f"{place}=") for word in given)
        if written and model["dtype"] != "fp32" and model.get("backend") == "llama_cpp" and not _is_loaded(model, plan):
            raise ConfigError(
                f"{place} is {model['dtype']}, and has no effect: model.{side}.backend=llama_cpp computes with the "
                f"weights of a GGUF file as they are, and no stage of this plan loads the checkpoint. Leave {place} "
                f"out, choose another file (model.{side}.gguf), or set model.{side}.backend=torch."
            )


def _is_loaded(model: Mapping[str, Any], plan: Plan) -> bool:
    """True if a stage before serving loads the model's checkpoint in its dtype."""
    before = (stage for name, stage in plan.stages.items() if plan.kinds[name] in ("train", "profile"))
    return any(_has_checkpoint(stage.args, model) for stage in before)


def _has_checkpoint(node: Any, model: Mapping[str, Any]) -> bool:
    """True if the model's checkpoint, in its dtype, is among a stage's options."""
    if isinstance(node, Mapping):
        if "dtype" in node and all(node.get(key) == model.get(key) for key in ("path", "hub", "dtype")):
            return True
        node = list(node.values())
    return isinstance(node, list) and any(_has_checkpoint(item, model) for item in node)


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _no_gpu(option: str, value: str, instead: str) -> str:
    import torch

    why = "is a build without CUDA" if torch.version.cuda is None else "sees none here"
    return f"{option} is {value}, and torch {torch.__version__} {why}. Nothing was run; set {instead}."


def unread_words(given: Iterable[str], groups: Collection[str], composed: Callable[[], str]) -> list[str]:
    """A note for each word that adds a setting which nothing reads: conf/ has none that begins so, it chooses none of
    the `groups`, and no reference or template in what was composed, which `composed` gives as text, names it.
    """
    from pipeline.config.sources import read_named  # loads YAML, which a plan that was composed before needs not

    keys = [word.lstrip("+").partition("=")[0] for word in given if word.startswith("+")]
    roots = {key: key.partition(".")[0] for key in keys if key not in groups and not {"/", "@"} & set(key)}
    known = {*(read_named("config") or ()), *(path.name for path in conf_dir().iterdir()), TRIAL} if roots else set()
    unknown = {key: re.escape(root) for key, root in roots.items() if root not in known}
    text = composed() if unknown else ""
    return [
        f"nothing reads +{key}, so it has no effect.{suggestion(roots[key], sorted(known))}"
        for key, root in unknown.items()
        if not re.search(rf"\$\{{[^}}]*\b{root}\b|\{{{root}\b[\w./]*\}}", text)
    ]


def slow_dtypes(config: Mapping[str, Any], cpu_flags: Callable[[], frozenset[str]]) -> list[str]:
    """A note for each model that runs on this processor in a dtype in which it does not multiply."""
    if config["accelerator"] != "cpu" or str(select(config, "runtime._target_")).endswith(".Simulated"):
        return []
    notes = []
    for role in ("device", "cloud"):
        place, model = f"model.{role}.dtype", select(config, f"model.{role}") or {}
        wanted = DTYPE_FLAGS.get(str(model.get("dtype")))
        by_torch = model.get("backend", "torch") == "torch" and not model.get("server")
        if wanted and by_torch and (flags := cpu_flags()) and not wanted & flags:
            notes.append(
                f"{place} is {model['dtype']}, in which this processor does not multiply (it lacks "
                f"{', '.join(sorted(wanted))}). Where AVX2 is all there is, passes took 2 to 9 times as long as with "
                f"{place}=fp32."
            )
    return notes


def unusual_chips(named: Mapping[tuple[str, str], Any]) -> list[str]:
    """A note for each figure of a user's own chip that is probably in another unit than was meant; `named` are the
    nodes that were asked for, by group and name.
    """
    own = {name: node for (group, name), node in named.items() if group == CHIPS and not _is_ours(name)}
    figures = (each for name, node in own.items() for each in _values(node, f"chip {name}:"))
    notes = (_unit_note(place, value, CHIP_RANGES.get(key)) for place, key, value in figures)
    return list(filter(None, notes))


def _unit_note(place: str, value: Any, usual: tuple[float, float, str] | None) -> str:
    """Empty for a value in its usual range, for no number, and where no range is known."""
    if usual is None or not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    low, high, meaning = usual
    if low <= value <= high:
        return ""
    return f"{place} is {value:g}: it is {meaning}, usually {low:g} to {high:g}. Is it meant so?"


def _is_ours(chip: str) -> bool:
    return (conf_dir() / CHIPS / f"{chip}.yaml").exists()


def _values(node: Any, where: str) -> Iterator[tuple[str, str, Any]]:
    """(place, key, value) of each entry of a mapping, and of those in it."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        place = f"{where}{' ' if where.endswith(':') else '.'}{key}"
        yield place, str(key), value
        yield from _values(value, place)


def unusual_values(config: Mapping[str, Any]) -> list[str]:
    """A note for each value that is possible and probably in another unit than was meant."""
    return list(
        filter(None, (_unit_note(place, select(config, place), usual) for place, usual in USUAL_RANGES.items()))
    )
