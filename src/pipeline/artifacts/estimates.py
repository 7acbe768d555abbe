"""How long a stage will take here and how much memory: from earlier builds, else from parameters and tokens.

An estimate is printed and changes no run. Sizes are read from the stage's plain arguments by their names.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from native.machine import usable_cores
from pipeline.artifacts import fingerprint
from pipeline.artifacts.changes import nearest
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import CONTENT, Stage

SPEED_FILE = ".speed.json"
BASE_NBYTES = 6e8
"""Memory of a process that has imported torch."""
STEP_S, FORWARD_S, EVENT_S, OTHER_S = 0.02, 1.5e-3, 3e-5, 2.0
"""Seconds beside the arithmetic: of a training step, of a forward of one token, of a simulated token; of other work."""
LOAD_TEST_S = 60.0
"""Assumed of load tests that were not built before: their windows and searches decide, not the workload's prompts."""
_LOAD_TESTS = frozenset({"load_test", "search"})
"""The arguments of stages that measure loads and search capacities."""
READ_NBYTES_PER_S = 1e10
"""Of a processor's memory: what is assumed of every machine."""
CORE_FLOPS_PER_S = 5e10
"""Of one core that multiplies matrices in float32 with 256-bit vectors: what is assumed of an unmeasured machine."""
_ROW_S = {"training.latency.stages.score_clock": 0.025}
"""Seconds for each line of the tables that a stage reads, where fits without these rows are its work: 16 s for 650."""
_SIMULATED = "serving.runtimes.simulated.Simulated"
"""The runtime that computes no model."""
_MODELS = "serving.engines.models."
"""Where the classes of checkpoints are."""
_REMEASURE_S = 3600.0
_TRAINING_NBYTES, _SERVING_NBYTES = 16, 4
"""Bytes for each parameter: weights, gradients and two moments; weights of which no format is known."""
_WEIGHT_NBYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "nf4": 0.5}
"""Bytes for each parameter of a checkpoint, by its quantisation, or else its dtype."""


@dataclass(frozen=True)
class BuildEstimate:
    """Seconds and peak memory of building a stage; `learned` if from earlier builds on this machine."""

    seconds: float
    memory_nbytes: float
    learned: bool


Maker = Callable[[str, str], str | None]
"""`maker(name, digest)`: the target that built an artifact; None where it is not known."""


def estimate(
    stage: Stage,
    earlier: list[Manifest],
    flops_per_s: Callable[[], float],
    pair_parameters: float = 0.0,
    maker: Maker = lambda *_: None,
) -> BuildEstimate:
    """`earlier` are builds of the same name, the latest first; `flops_per_s` is this machine's speed.

    `flops_per_s` is called only if no earlier build is comparable. `pair_parameters` stand in for the sizes of models
    that the stage's arguments do not give.
    """
    known = nearest(stage, [one for one in earlier if _is_comparable(stage, one, maker)])
    work = _tokens(stage.args)
    if known is None:
        return _from_sizes(stage, flops_per_s(), pair_parameters)
    scale = work / before if work and (before := _tokens(known.args)) else 1.0
    memory_nbytes = known.peak_memory_nbytes or _from_sizes(stage, math.inf, pair_parameters).memory_nbytes
    return BuildEstimate(max(known.seconds * scale, 0.1), memory_nbytes, True)


def _is_comparable(stage: Stage, one: Manifest, maker: Maker) -> bool:
    """True if the same function built it, in the runtime that the stage has, on inputs that the same functions made: a
    trained model says nothing of one that was unpacked. Where models run, they are the same ones, too.
    """
    if one.target != stage.target or _runtime(one.args) != _runtime(stage.args):
        return False
    if _runtime(stage.args) != _SIMULATED and _loaded_weights(one.args) != _loaded_weights(stage.identity):
        return False
    used = ((needed, one.inputs.get(name, needed.digest)) for name, needed in stage.inputs.items())
    return all(
        digest == needed.digest or maker(needed.name, digest) in (None, needed.target) for needed, digest in used
    )


def _loaded_weights(args: Mapping[str, Any]) -> list[str]:
    """Where the weights of each model lie: a name, an artifact or a digest of content."""
    places = ([model.get(key) for key in ("hub", "path", "gguf")] for model in _checkpoints(args))
    return sorted(json.dumps(each, sort_keys=True) for each in places)


def _checkpoints(args: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The models among the arguments, without pairs of them."""
    return [node for node in _nodes(args, "hub") if str(node.get("_target_")).startswith(_MODELS)]


def _runtime(args: Mapping[str, Any]) -> Any:
    runtime = args.get("runtime")
    return runtime.get("_target_") if isinstance(runtime, Mapping) else None


def pair_parameters(stages: Iterable[Stage]) -> float:
    """The parameters of a plan's two models, by the architectures that time them; 0 if the plan trains its pair, which
    is timed as a larger one.
    """
    models: dict[str, float] = {}
    for stage in stages:
        if _is_trained(stage):
            return 0.0
        timed = [node["timed_architecture"] for node in _nodes(stage.args, "timed_architecture")]
        models |= {str(one.get("name")): _value(one, "published_parameters") for one in timed if one}
    return sum(models.values())


def _from_sizes(stage: Stage, flops_per_s: float, pair: float) -> BuildEstimate:
    trained, steps, tokens = num_parameters(stage), _value(stage.args, "steps"), _tokens(stage.args)
    run = trained or pair * min(2, _count_models(stage.args)) / 2
    if a_step := _value(stage.args, "tokens_per_step"):  # a whole model learns what another one wrote
        trained, tokens = run, sum(_tokens(one.args) for one in stage.inputs.values())
        steps = tokens / a_step
    if steps:
        seconds = 6 * trained * tokens / flops_per_s + steps * STEP_S
        return BuildEstimate(seconds, BASE_NBYTES + _TRAINING_NBYTES * (trained or run), False)
    if not tokens:
        seconds = LOAD_TEST_S if stage.args.keys() & _LOAD_TESTS else OTHER_S + _table_seconds(stage)
        return BuildEstimate(seconds, BASE_NBYTES, False)
    if _SIMULATED in json.dumps(stage.identity):
        return BuildEstimate(OTHER_S + tokens * EVENT_S, BASE_NBYTES / 2, False)
    prompts = _value(stage.args, "num_prompts") * _value(stage.args, "max_prompt_tokens")
    seconds = OTHER_S + 2 * run * (prompts + tokens) / flops_per_s + tokens * FORWARD_S
    if prompts:  # tokens come one by one, and each reads all weights
        seconds += tokens * _SERVING_NBYTES * run / READ_NBYTES_PER_S
    weights_nbytes = 0.0 if trained or not pair else _timed_weights_nbytes(stage.args)
    return BuildEstimate(seconds, BASE_NBYTES + (weights_nbytes or _nbytes_per_weight(stage.args) * run), False)


def _timed_weights_nbytes(args: Mapping[str, Any]) -> float:
    """Of the models that run here, by the architectures that time them; 0 where none is named."""
    timed = [model for model in _checkpoints(args) if model.get("timed_architecture") and not model.get("server")]
    return sum(_value(model["timed_architecture"], "published_parameters") * _weight_nbytes(model) for model in timed)


def _nbytes_per_weight(args: Mapping[str, Any]) -> float:
    """The most that one of the models takes."""
    return max(map(_weight_nbytes, _checkpoints(args)), default=_SERVING_NBYTES)


def _weight_nbytes(model: Mapping[str, Any]) -> float:
    by_dtype = _WEIGHT_NBYTES.get(str(model.get("dtype")), _SERVING_NBYTES)
    return _WEIGHT_NBYTES.get(str(model.get("quantization")), by_dtype)


def _table_seconds(stage: Stage) -> float:
    if stage.target not in _ROW_S:
        return 0.0
    tables = (Path(node["path"]) for node in _nodes(stage.args, CONTENT))
    return _ROW_S[stage.target] * sum(table.read_bytes().count(b"\n") for table in tables)


def _count_models(args: Mapping[str, Any]) -> int:
    """The checkpoints that the stage loads."""
    return sum(str(node["_target_"]).startswith(_MODELS) for node in _nodes(args, "_target_"))


def _tokens(args: Mapping[str, Any]) -> float:
    """Tokens that the stage runs: of its training steps, of the answers that it records, or prompts and answers of its
    workload; 0: not said, or not what decides.
    """
    if args.keys() & _LOAD_TESTS:
        return 0.0
    steps, prompts = _value(args, "steps"), _value(args, "num_prompts")
    if steps:
        return steps * (_value(args, "batch_size") or 1) * (_value(args, "row_tokens") or 64)
    return prompts * (_value(args, "max_new_tokens") or 1) if prompts else _value(args, "answer_tokens")


def _is_trained(stage: Stage) -> bool:
    """True if the stage trains a model from random weights."""
    return "recipe" in stage.args and isinstance(stage.args.get("architecture"), Mapping)


def num_parameters(stage: Stage) -> float:
    """Parameters of the models that the stage trains, or runs: those of its inputs, and checkpoints' of files.

    Other architectures among its arguments are only timed.
    """
    trained = [one.args["architecture"] for one in (stage, *stage.inputs.values()) if _is_trained(one)]
    files = sum(_checkpoint_parameters(Path(node["path"])) for node in _nodes(stage.args, CONTENT))
    return files + sum(_llama_parameters(sizes) for sizes in trained)


def _checkpoint_parameters(folder: Path) -> float:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0
    return _llama_parameters({**config, "layers": config.get("num_hidden_layers")}) if isinstance(config, dict) else 0.0


def _llama_parameters(sizes: Mapping[str, Any]) -> float:
    """Of a decoder with gated MLPs; embedding and head count once."""
    hidden, layers, inner, vocab_size = (
        float(sizes[key]) if _is_number(sizes.get(key)) else 0.0
        for key in ("hidden_size", "layers", "intermediate_size", "vocab_size")
    )
    return layers * (4 * hidden * hidden + 3 * hidden * (inner or 4 * hidden)) + hidden * vocab_size


def _nodes(node: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """All mappings below `node` that have `key`."""
    if isinstance(node, Mapping):
        if key in node:
            yield node
        for item in node.values():
            yield from _nodes(item, key)
    elif isinstance(node, list):
        for item in node:
            yield from _nodes(item, key)


def _value(args: Mapping[str, Any], key: str) -> float:
    """The number that is called `key`; 0 without one."""
    return next((float(node[key]) for node in _nodes(args, key) if _is_number(node[key])), 0.0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def expected_flops_per_s(root: Path) -> float:
    """Floating-point operations a second of a matrix product, as builds in the store at `root` measured them.

    Before the first build: `CORE_FLOPS_PER_S` of each core, because measuring loads numpy, which a plan does not need.
    """
    known, _ = _read_speed(root / SPEED_FILE)
    return known or CORE_FLOPS_PER_S * usable_cores()


def measure_speed(root: Path) -> None:
    """Measures this machine for later plans; keeps the most that was ever measured for the store at `root`.

    A measurement on a busy machine is too low; one is made again `_REMEASURE_S` after the last. Does nothing in a
    process that has not loaded numpy.
    """
    known, age_s = _read_speed(root / SPEED_FILE)
    if "numpy" in sys.modules and age_s >= _REMEASURE_S:
        speed = max(known, _measure_flops_per_s())
        with suppress(OSError):  # the artifact is there: what comes after it fails no build
            fingerprint.write_atomic(root / SPEED_FILE, json.dumps({"flops_per_s": speed}) + "\n")


def _read_speed(file: Path) -> tuple[float, float]:
    """The speed that is kept, and its age in seconds; (0, inf) without one."""
    try:
        known = float(json.loads(file.read_text(encoding="utf-8"))["flops_per_s"])
        return known, time.time() - file.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, math.inf


@cache
def _measure_flops_per_s(size: int = 512, limit_s: float = 0.15) -> float:
    import numpy as np

    matrix = np.ones((size, size), np.float32)
    begun_s, best_s = time.perf_counter(), math.inf
    while time.perf_counter() < begun_s + limit_s:
        at_s = time.perf_counter()
        matrix @ matrix
        best_s = min(best_s, time.perf_counter() - at_s)
    return 2.0 * size**3 / best_s


class PeakMemory:
    """The largest resident memory of this process since `reset`; None where the system does not tell."""

    def reset(self) -> None:
        """Makes the kernel forget earlier peaks."""
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return

    def read_nbytes(self) -> int | None:
        try:
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
