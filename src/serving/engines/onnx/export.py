"""Exports a checkpoint and the scorers of its hidden states to ONNX graphs, and compares the model's with torch."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from serving.core.scores import Scorer, Scorers, by_name, reading_hidden_states
from serving.engines.models import Checkpoint, check_exportable, check_onnx_libraries
from serving.engines.onnx.graph import ExportGraph, logit_module
from serving.engines.onnx.header import (
    MODEL_FILE,
    GraphLayout,
    OnnxHeader,
    score_output,
    scorer_file,
    weights_digest,
)
from serving.engines.onnx.session import OnnxOutput, OnnxSession
from serving.engines.torch.model import DecomposedModel, load_model
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache

MAX_DIFFERENCE = 1e-3
"""The largest difference from torch that a logit or hidden state may have."""
FEED_LENGTHS = ((1, 1, 1, 5), (24, 1, 1, 1, 3), (9, 12, 1, 4))
"""Per test sequence: the number of tokens of each pass."""


def check_export(model: DecomposedModel, header: OnnxHeader, folder: Path) -> OnnxHeader:
    """Compares the export with torch, and saves the header with the differences.

    Raises ValueError if an fp32 graph differs by more than `MAX_DIFFERENCE`. An int8 graph may; its header tells how
    often both choose the same token.
    """
    header.save(folder)
    found = compare(model, OnnxSession(folder))
    worst = max(found["logits"], found["hidden"])
    if not header.int8 and not worst <= MAX_DIFFERENCE:
        raise ValueError(
            f"{header.checkpoint_name} (architecture {header.architecture!r}): the exported graph differs from torch "
            f"by {worst:.2g} (logits {found['logits']:.2g}, hidden states {found['hidden']:.2g}), and "
            f"{MAX_DIFFERENCE:g} is allowed; serve it with model.device.backend=torch"
        )
    header = replace(header, torch_differences=found)
    header.save(folder)
    return header


def compare(model: DecomposedModel, session: OnnxSession, seed: int = 0) -> dict[str, float]:
    """Largest differences of logits and hidden states over a few random texts, and the share of equal greedy tokens."""
    pairs = [pair for feeds in FEED_LENGTHS for pair in _paired_outputs(model, session, feeds, seed)]
    differing = {
        "logits": max(_max_difference(ours.logits, logits) for ours, logits, _ in pairs),
        "hidden": max(_max_difference(ours.hidden_states, hidden) for ours, _, hidden in pairs),
    }
    same = [(ours.logits.argmax(-1) == logits.argmax(-1)).tolist() for ours, logits, _ in pairs]
    agreeing = [one for rows in same for one in rows]
    return {**differing, "greedy": sum(agreeing) / len(agreeing), "rows": float(len(agreeing))}


def _max_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max())


@torch.inference_mode()
def _paired_outputs(
    model: DecomposedModel, session: OnnxSession, feed_lengths: tuple[int, ...], seed: int
) -> Iterator[tuple[OnnxOutput, np.ndarray, np.ndarray]]:
    """Per pass, the graph's outputs of all tokens, and torch's logits and hidden states."""
    runner, cache = ModelRunner(model, model.vocab_size), SequenceCache(model, 0, len(model.layers))
    past = session.empty_cache()
    generator = torch.Generator().manual_seed(seed)
    for length in feed_lengths:
        tokens = torch.randint(model.vocab_size, (length,), generator=generator).tolist()
        output = session.run(tokens, range(length), past)
        past = output.present
        hidden = runner.run(runner.embed(tokens), [RunnerInput(cache, length)], 0, len(model.layers))
        normed = runner.apply_norm(hidden)
        yield output, runner.apply_lm_head(normed).numpy(), normed.numpy()


MAX_INLINE_NBYTES = 1 << 30
"""Larger weights go to a separate file: protobuf is limited to 2 GiB."""


def export(
    checkpoint: Checkpoint,
    out: Path,
    scorers: Sequence[Scorer] = (),
    graphs: GraphLayout = "one",
    int8: bool = False,
) -> OnnxHeader:
    """Writes model.onnx, onnx.json and a graph of each of `scorers` that reads hidden states; then compares with torch.

    `graphs` one: the model's graph also outputs the logits of these scores; two: only their own graphs do. `int8`:
    onnxruntime's dynamic quantisation of matrix products (weights stored as bytes, inputs rounded to bytes at run
    time).

    Raises ValueError for a checkpoint that is not fp32, for a scorer of another model or one that cannot be exported,
    if the exporter fails, and if the graph differs from torch.
    """
    check_onnx_libraries()
    check_exportable(checkpoint)
    exported = reading_hidden_states(by_name(scorers))
    logits = {name: logit_module(scorer) for name, scorer in exported.items()}
    model = load_model(checkpoint.name_or_path)
    _check_width(exported, checkpoint, model)
    header = OnnxHeader(
        architecture=_architecture(checkpoint), layers=len(model.layers), kv_heads=model.kv_heads,
        head_size=model.head_size, hidden_size=model.hidden_size, vocab_size=model.vocab_size, int8=int8, graphs=graphs,
        scorer_digests={name: scorer.digest for name, scorer in exported.items()},
        checkpoint_name=checkpoint.display_name, weights_digest=weights_digest(checkpoint),
    )  # fmt: skip
    with _export_errors(checkpoint, header.architecture), _quiet_export():
        _export_model(model, header, [logits[name] for name in header.scores_of_graph], out / MODEL_FILE)
        for name, module in logits.items():
            _export_scorer(name, module, model.hidden_size, out)
    return check_export(model, header, out)


def _check_width(scorers: Scorers, checkpoint: Checkpoint, model: DecomposedModel) -> None:
    for scorer in scorers.values():
        if scorer.num_features != model.hidden_size:
            raise ValueError(
                f"{scorer!r} reads {scorer.num_features} numbers, and the hidden states of "
                f"{checkpoint.display_name} have {model.hidden_size}; train it on this model"
            )


def _architecture(checkpoint: Checkpoint) -> str:
    from transformers import AutoConfig

    return str(AutoConfig.from_pretrained(checkpoint.name_or_path).model_type)


def _export_model(model: DecomposedModel, header: OnnxHeader, score_logits: Sequence[nn.Module], file: Path) -> None:
    graph = ExportGraph(model, score_logits)
    try:
        program = _export_program(graph.eval(), *_example_inputs(header), header.input_names, header.output_names)
    finally:
        graph.restore_attention()
    if not header.int8:
        program.save(file, external_data=_nbytes(graph) > MAX_INLINE_NBYTES)
        return
    with TemporaryDirectory(dir=file.parent) as folder:
        program.save(Path(folder) / MODEL_FILE, external_data=_nbytes(graph) > MAX_INLINE_NBYTES)
        _quantize(Path(folder) / MODEL_FILE, file, external=_nbytes(graph) > MAX_INLINE_NBYTES)


def _export_scorer(name: str, logit: nn.Module, num_features: int, folder: Path) -> None:
    # No keys: the parameter of a user's module may have any name.
    shapes = ({0: torch.export.Dim("rows")},)
    program = _export_program(logit, (torch.zeros(3, num_features),), shapes, ("hidden",), (score_output(name),))
    program.save(folder / scorer_file(name), external_data=False)


def _example_inputs(header: OnnxHeader) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors to trace with, without sizes 0 and 1, and their dynamic dimensions."""
    batch, length, n, past = (torch.export.Dim(name) for name in ("batch", "length", "n", "past"))
    cached = [torch.zeros(2, header.kv_heads, 3, header.head_size) for _ in header.past_names]
    ids, rows = torch.zeros(2, 5, dtype=torch.long), torch.arange(4)
    free = {"ids": {0: batch, 1: length}, "rows": {0: n}, "past": [{0: batch, 2: past}] * len(cached)}
    return (ids, rows, cached), free


def _export_program(
    module: nn.Module, example: tuple[Any, ...], shapes: dict[str, Any] | tuple[Any, ...], inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> Any:  # fmt: skip
    with torch.no_grad():
        program: Any = torch.onnx.export(
            module, example, dynamo=True, dynamic_shapes=shapes, input_names=list(inputs),
            output_names=list(outputs), verbose=False,
        )  # fmt: skip
    for node in program.model.graph:  # traces of source lines: a quarter of a small graph's bytes
        node.metadata_props.clear()
    return program


def _quantize(source: Path, file: Path, external: bool) -> None:
    """Quantises matrix products with weights. Attention has none, and trained scores keep their precision."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(source), load_external_data=False).graph
    scores = [each.name for each in graph.output if each.name.startswith(score_output(""))]
    kept = [node for score in scores for node in _nodes_between("hidden", score, graph.node)]
    quantize_dynamic(
        str(source), str(file), op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8, nodes_to_exclude=kept,
        use_external_data_format=external,
    )  # fmt: skip


def _nodes_between(first: str, last: str, nodes: Sequence[Any]) -> list[str]:
    """Names of the nodes that compute the value `last` from the value `first`."""
    makers = {output: node for node in nodes for output in node.output}
    found, waiting = [], [last]
    while waiting:
        value = waiting.pop()
        if value != first and value in makers:
            found.append(makers[value].name)
            waiting += makers[value].input
    return found


def _nbytes(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters())


@contextmanager
def _export_errors(checkpoint: Checkpoint, architecture: str) -> Iterator[None]:
    """Turns any error of the exporter into a ValueError with the model, the reason and what to do."""
    try:
        yield
    except Exception as problem:
        raise ValueError(
            f"{checkpoint.display_name} (architecture {architecture!r}) cannot be exported to ONNX: "
            f"{_reason(problem)}. Serve it with model.device.backend=torch, which runs "
            "every architecture that is supported; where it has dtype, quantization or int8 set, try the export without"
        ) from problem


def _reason(problem: BaseException) -> str:
    """The first cause, in one line."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0] if lines else 'without a word'}".rstrip(".")


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Hides warnings of the exporter and the quantiser, and the handler that they add to the root logger."""
    root, level = logging.getLogger(), logging.root.manager.disable
    handlers = list(root.handlers)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.handlers[:] = handlers


def export_device(
    out: Path, *, device: Checkpoint, scorers: tuple[Scorer, ...] = (), graphs: GraphLayout = "one", int8: bool = False
) -> None:
    """Stage: exports the device's model and its trained scores; writes the graphs, onnx.json and check.txt."""
    header = export(device, out, scorers, graphs, int8)
    found = header.torch_differences
    (out / "check.txt").write_text(
        f"{header.checkpoint_name} as an ONNX graph{' in int8' if int8 else ''}, beside torch: largest difference of "
        f"logits {found['logits']:.2g}, of hidden states {found['hidden']:.2g}; {found['greedy']:.1%} of "
        f"{found['rows']:.0f} greedy tokens are the same\n",
        encoding="utf-8",
    )
