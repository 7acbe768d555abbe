"""Rows of a user's own machine: benchmark runs, matched with a chip and an architecture, and checked against both."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.hardware.architecture import Architecture, Precision
from serving.hardware.chip import Chip
from training.latency import benchmark_json, llama_bench, vllm_bench
from training.latency.benchmark_run import BenchmarkRun, Refusal
from training.latency.published_speeds import PRECISIONS, PublishedSpeed, check_peaks_known, row_key
from training.latency.vllm_bench import LatencyShape

SHAPE_FIELDS = ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size")
"""What an architecture needs to be a file of conf/model/architecture: the figures of a model's config.json."""
_MAX_EXTRA_PARAMETERS = 1024
"""Factors of rotary positions, which a GGUF file may store beside the weights."""
_MAX_PARAMETER_ERROR = 0.02
_MIN_READ_SHARE = 0.5
"""Of the time to read all weights at the chip's peak: a cache may hold a part of a small model."""
_MIN_COMPUTE_SHARE = 0.25
"""Of the time to compute at the 16-bit peak: 8-bit and sparse units are up to four times faster."""


@dataclass(frozen=True)
class OwnMachine:
    """What a benchmark's output does not say."""

    chip: Chip
    mode: str | None
    source: str
    licence: str
    software: str | None = None
    """None: the tool's."""
    architecture: Architecture | None = None
    """None: the one with the model's name or number of parameters."""
    precision: Precision | None = None
    """None: as the output says."""
    shape: LatencyShape | None = None

    def __post_init__(self) -> None:
        check_peaks_known(self.chip, self.mode)
        if self.mode is None and len(self.chip.modes) > 1:
            raise ValueError(
                f"in which power mode did it run? mode=NAME, one of {', '.join(self.chip.modes)}: no benchmark says it "
                "(nvpmodel -q shows it on a Jetson board)."
            )
        for name in ("source", "licence"):
            value = getattr(self, name)
            if not value or value != benchmark_json.printable(value):
                raise ValueError(
                    f"{name}= is {value!r}; one line of 1 to {benchmark_json.MAX_TEXT} signs is wanted: who measured "
                    "it, where and when (source), and under which licence the figures may be used (licence)."
                )
        if self.software is not None and not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", self.software):
            raise ValueError(
                f"software={self.software!r}: a name as in conf/hardware/chip is wanted, such as llama_cpp."
            )


def own_machine(chip: Chip, architecture: Architecture | None, facts: Mapping[str, str]) -> OwnMachine:
    """From the words of a command line. Raises ValueError for one that is not allowed."""
    precision = facts.get("precision")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision={precision}: one of {', '.join(PRECISIONS)} is wanted.")
    return OwnMachine(
        chip, facts.get("mode"), facts.get("source", "not stored"), facts.get("licence", "not stored"),
        facts.get("software"), architecture, precision, _shape_of_latency(facts),
    )  # fmt: skip


def _shape_of_latency(facts: Mapping[str, str]) -> LatencyShape | None:
    given = [name for name in ("batch", "input_len", "output_len") if name in facts]
    if not given and "prefill" not in facts:
        return None
    if len(given) < 3:
        raise ValueError("batch=, input_len= and output_len= of `vllm bench latency` go together.")
    wrong = next((name for name in given if not re.fullmatch(r"[1-9][0-9]{0,6}", facts[name])), None)
    if wrong:
        raise ValueError(f"{wrong}={facts[wrong]}: a whole number of 1 or more is wanted.")
    batch, input_len, output_len = (int(facts[name]) for name in given)
    return LatencyShape(batch, input_len, output_len, Path(facts["prefill"]) if "prefill" in facts else None)


@dataclass
class OwnSpeeds:
    """Rows that passed every check, and what was refused, each with its reason."""

    rows: list[PublishedSpeed] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def read_own_speeds(
    files: Sequence[Path], machine: OwnMachine, architectures: Mapping[str, Architecture],
    stored: Sequence[PublishedSpeed] = (),
) -> OwnSpeeds:  # fmt: skip
    """The rows of the benchmark files that are not `stored` yet. Raises ValueError for a file that is none."""
    found, known = OwnSpeeds(), {row_key(row): row for row in stored}
    runs: list[tuple[BenchmarkRun, PublishedSpeed]] = []
    for run in _read_runs(files, machine.shape):
        if isinstance(run, Refusal):
            found.refusals.append(run)
            continue
        try:
            runs.append((run, _matched(run, machine, architectures)))
        except ValueError as problem:
            found.refusals.append(Refusal(run.where, str(problem)))
    for same in _same_work(runs):
        run, row = same[0]
        if len(same) == 1 and row_key(row) not in known:
            found.rows.append(row)
        elif len(same) == 1:
            found.refusals.append(Refusal(run.where, _stored(known[row_key(row)])))
        else:
            found.refusals += [Refusal(run.where, _repeated([other for other, _ in same])) for run, _ in same]
    return found


def _read_runs(files: Sequence[Path], shape: LatencyShape | None) -> Iterator[BenchmarkRun | Refusal]:
    for file in files:
        for place, record in enumerate(benchmark_json.read_records(file), 1):
            where = f"{file.name}, record {place}"
            try:
                if llama_bench.is_record(record):
                    yield llama_bench.read_run(record, where)
                elif vllm_bench.is_record(record):
                    yield from vllm_bench.read_runs(record, where, shape)
                else:
                    raise ValueError(
                        "neither llama-bench (-o json or jsonl) nor vllm bench (latency --output-json, serve "
                        "--save-result) wrote it"
                    )
            except ValueError as problem:
                yield Refusal(where, str(problem))


def _matched(run: BenchmarkRun, machine: OwnMachine, architectures: Mapping[str, Architecture]) -> PublishedSpeed:
    architecture = _architecture(run, machine, architectures)
    if run.gpu_layers is not None and run.gpu_layers <= architecture.layers:
        raise ValueError(
            f"{run.gpu_layers} of {architecture.layers + 1} layers ran on the GPU and the others on the CPU: measure "
            "with -ngl 99, or with -dev none for the CPU alone"
        )
    row = PublishedSpeed(
        machine.chip, machine.mode, machine.software or run.software, architecture, _precision(run, machine), run.phase,
        run.batch, run.cached_tokens, run.new_tokens, run.seconds, machine.source, machine.licence,
        benchmark_json.printable(run.note),
    )  # fmt: skip
    _check_peaks(row)
    return row


def _precision(run: BenchmarkRun, machine: OwnMachine) -> Precision:
    if run.precision and machine.precision and run.precision != machine.precision:
        raise ValueError(f"the file has weights in {run.precision}, and precision={machine.precision} was given")
    found = run.precision or machine.precision
    if found is None:
        raise ValueError("the output does not say how weights are stored: precision=fp16 (or bf16's), int8 or int4")
    return found


def _architecture(run: BenchmarkRun, machine: OwnMachine, known: Mapping[str, Architecture]) -> Architecture:
    if (given := machine.architecture) is not None:
        own = _parameter_counts(given)
        if run.parameters is not None and min(abs(run.parameters / n - 1) for n in own) > _MAX_PARAMETER_ERROR:
            raise ValueError(
                f"{run.model!r} has {run.parameters:,} parameters, and architecture={given.name} has {own[0]:,}"
            )
        return given
    fitting = [each for each in known.values() if _fits(run, each)] if run.is_known_family else []
    if len({_shape(each) for each in fitting}) != 1:
        named = f"{run.model!r}" if run.model else "the model, which the output does not name,"
        counted = f" with {run.parameters:,} parameters" if run.parameters else ""
        several = f" ({', '.join(each.name for each in fitting)} have as many)" if fitting else ""
        raise ValueError(
            f"which architecture is {named}{counted}?{several} Name it: architecture=NAME of conf/model/architecture, "
            f"or add one YAML file there with {', '.join(SHAPE_FIELDS)} of its config.json, published_parameters and "
            "source"
        )
    return min(fitting, key=lambda each: each.name)


def _fits(run: BenchmarkRun, architecture: Architecture) -> bool:
    """True if the model has its number of parameters or, where the tool counts none, its name."""
    if run.parameters is None:
        own = next(iter(architecture.source.lower().split()), None)
        return bool(run.model and own) and run.model.lower() in (own, f"{own}-instruct", f"{own}-chat")
    return any(0 <= run.parameters - each <= _MAX_EXTRA_PARAMETERS for each in _parameter_counts(architecture))


def _parameter_counts(architecture: Architecture) -> tuple[int, int]:
    """With a tied head counted once, and as a file has them that stores it apart."""
    once = architecture.parameters()
    return once, once + architecture.head_parameters * architecture.tied_embeddings


def _shape(architecture: Architecture) -> tuple[object, ...]:
    return tuple(getattr(architecture, name) for name in SHAPE_FIELDS)


def _check_peaks(row: PublishedSpeed) -> None:
    """Raises ValueError for a row that is faster than its chip can be."""
    mode, model, load = row.chip.mode(row.mode), row.architecture, row.load
    assert mode.memory_gbps is not None
    assert mode.fp16_tflops is not None
    read_s = (model.blocks_nbytes(row.precision) + model.head_nbytes(row.precision)) / (mode.memory_gbps * 1e9)
    compute_s = 2 * model.matmul_parameters * load.num_tokens / (mode.fp16_tflops * 1e12)
    if row.seconds < max(_MIN_READ_SHARE * read_s, _MIN_COMPUTE_SHARE * compute_s):
        raise ValueError(
            f"{1e3 * row.seconds:.4g} ms is faster than {row.chip.name} can be: at its peaks reading the weights of "
            f"{model.name} in {row.precision} takes {1e3 * read_s:.4g} ms, computing {1e3 * compute_s:.4g} ms. Is the "
            "chip, mode, batch or length another one, or were there several chips?"
        )


def _same_work(
    runs: Iterable[tuple[BenchmarkRun, PublishedSpeed]],
) -> Iterable[list[tuple[BenchmarkRun, PublishedSpeed]]]:
    found: dict[object, list[tuple[BenchmarkRun, PublishedSpeed]]] = defaultdict(list)
    for run, row in runs:
        found[row_key(row)].append((run, row))
    return found.values()


def _repeated(runs: Sequence[BenchmarkRun]) -> str:
    varied = [name for name in runs[0].settings if len({str(run.settings.get(name)) for run in runs}) > 1]
    settings = f", with {', '.join(varied)} of {' | '.join(_settings(run, varied) for run in runs)}" if varied else ""
    places = " and ".join(run.where for run in runs)
    return f"{places} measure the same work{settings}: keep the one whose settings you serve with"


def _stored(row: PublishedSpeed) -> str:
    return (
        f"the file has this work already, with {1e3 * row.seconds:.4g} ms: remove that row, or give another source= if "
        "it is another machine or build"
    )


def _settings(run: BenchmarkRun, names: Sequence[str]) -> str:
    return benchmark_json.printable(" ".join(str(run.settings.get(name)) for name in names))
