"""From a checkpoint to model.onnx, by torch's own exporter; and a router to router.onnx."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from serving.engines.models import Checkpoint
from serving.engines.onnx import refusals, requirements, weights
from serving.engines.onnx.checked import check
from serving.engines.onnx.graph import Graph, Logit
from serving.engines.onnx.header import MODEL, ROUTER, Graphs, Header
from serving.engines.torch.model import Model, open_model
from serving.learned.router import Router

INLINE_NBYTES = 1 << 30
"""Larger weights lie in a file beside the graph: protobuf ends at 2 GiB."""


def export(
    checkpoint: Checkpoint, out: Path, router: Router | None = None, graphs: Graphs = "one", int8: bool = False
) -> Header:
    """Writes model.onnx, router.onnx where there is a router, and onnx.json; then runs them beside torch.

    `graphs` one: the model's graph has the router's logit as an output, too; two: only router.onnx has. `int8`: the
    weights of matrix products are stored in bytes, the rows that meet them are rounded to bytes as they come
    (onnxruntime's dynamic quantisation).
    Raises ValueError for a checkpoint that is not computed in fp32, for a router of another model, where the exporter
    fails, and where the graph says something else than torch.
    """
    requirements.check()
    refusals.check(checkpoint)
    model = open_model(checkpoint.where)
    if router and router.inputs != model.hidden:
        raise ValueError(
            f"the router {router} reads {router.inputs} numbers, and the hidden states of {checkpoint.named} have "
            f"{model.hidden}; train it on this model"
        )
    header = Header(
        architecture=_architecture(checkpoint), layers=len(model.layers), kv_heads=model.kv_heads,
        head_size=model.head_size, hidden=model.hidden, vocabulary=model.vocabulary, int8=int8, graphs=graphs,
        router=router.digest if router else None, made_from=checkpoint.named, weights=weights.digest(checkpoint),
    )  # fmt: skip
    with _explained(checkpoint, header.architecture), _quietly():
        _export_model(model, header, router if header.routes else None, out / MODEL)
        if router:
            _export_router(router, out / ROUTER)
    return check(model, header, out)


def _architecture(checkpoint: Checkpoint) -> str:
    from transformers import AutoConfig

    return str(AutoConfig.from_pretrained(checkpoint.where).model_type)


def _export_model(model: Model, header: Header, router: Router | None, file: Path) -> None:
    graph = Graph(model, router)
    try:
        program = _program(graph.eval(), *_example(header), header.inputs, header.outputs)
    finally:
        graph.give_back()
    if not header.int8:
        program.save(file, external_data=_nbytes(graph) > INLINE_NBYTES)
        return
    with TemporaryDirectory(dir=file.parent) as folder:
        program.save(Path(folder) / MODEL, external_data=_nbytes(graph) > INLINE_NBYTES)
        _quantize(Path(folder) / MODEL, file, external=_nbytes(graph) > INLINE_NBYTES)


def _export_router(router: Router, file: Path) -> None:
    states = torch.zeros(3, router.inputs)
    shapes = {"hidden": {0: torch.export.Dim("rows")}}
    _program(Logit(router).eval(), (states,), shapes, ("hidden",), ("route",)).save(file, external_data=False)


def _example(header: Header) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Tensors to trace with, no size of which is 0 or 1, and which of their sizes are free."""
    batch, length, n, past = (torch.export.Dim(name) for name in ("batch", "length", "n", "past"))
    cached = [torch.zeros(2, header.kv_heads, 3, header.head_size) for _ in header.past]
    ids, rows = torch.zeros(2, 5, dtype=torch.long), torch.arange(4)
    free = {"ids": {0: batch, 1: length}, "rows": {0: n}, "past": [{0: batch, 2: past}] * len(cached)}
    return (ids, rows, cached), free


def _program(
    module: nn.Module, example: tuple[Any, ...], shapes: Mapping[str, Any], inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> Any:  # fmt: skip
    with torch.no_grad():
        program: Any = torch.onnx.export(
            module, example, dynamo=True, dynamic_shapes=dict(shapes), input_names=list(inputs),
            output_names=list(outputs), verbose=False,
        )  # fmt: skip
    for node in program.model.graph:  # where in whose files each was traced: a quarter of a small graph's bytes
        node.metadata_props.clear()
    return program


def _quantize(source: Path, file: Path, external: bool) -> None:
    """Products with weights only: those of attention have none, and the router keeps its precision."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    router = _between("hidden", "route", onnx.load(str(source), load_external_data=False).graph.node)
    quantize_dynamic(
        str(source), str(file), op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8, nodes_to_exclude=router,
        use_external_data_format=external,
    )  # fmt: skip


def _between(first: str, last: str, nodes: Sequence[Any]) -> list[str]:
    """Names of the nodes that make the value `last` of the value `first`."""
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
def _explained(checkpoint: Checkpoint, architecture: str) -> Iterator[None]:
    """Any error of the exporter becomes one that says which model failed, why, and what to do."""
    try:
        yield
    except Exception as problem:
        raise ValueError(
            f"{checkpoint.named} (architecture {architecture!r}) cannot be exported to ONNX: {_reason(problem)}. "
            "Serve it with model.device.backend=torch, which runs every architecture that is supported; where it has "
            "dtype, quantization or int8 set, try the export without"
        ) from problem


def _reason(problem: BaseException) -> str:
    """The error that began it, in a line."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0] if lines else 'without a word'}".rstrip(".")


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter warns of torch's own code and of packages that no text model needs, the quantiser of a step that
    the exporter has done; by the root logger, to which the first such line would add a handler.
    """
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
