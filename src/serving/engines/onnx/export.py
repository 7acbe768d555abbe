"""From a checkpoint to model.onnx, by torch's own exporter; and a router to router.onnx.

An export is run beside torch before anybody relies on it.

What configuration may name as a stage of exporting.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from serving.engines.models import Checkpoint
from serving.engines.onnx import requirements
from serving.engines.onnx.graph import Graph, Logit
from serving.engines.onnx.header import MODEL, ROUTER, Graphs, Header, weights_digest
from serving.engines.onnx.session import Ran, Session
from serving.engines.torch.model import Model, open_model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.learned.router import Router

LIMIT = 1e-3
"""Of the largest difference between a logit or a number of a hidden state and torch's."""
FEEDS = ((1, 1, 1, 5), (24, 1, 1, 1, 3), (9, 12, 1, 4))
"""Of each sequence: how many tokens go in at once."""


def check(model: Model, header: Header, folder: Path) -> Header:
    """Saves the header, and the header as it is now known to be: with what was found beside torch.

    Raises ValueError where a graph in fp32 differs from torch by more than 1e-3; in int8 it may, and what is told is
    how often both choose the same token.
    """
    header.save(folder)
    found = compare(model, Session(folder))
    worst = max(found["logits"], found["hidden"])
    if not header.int8 and not worst <= LIMIT:
        raise ValueError(
            f"{header.made_from} (architecture {header.architecture!r}): the exported graph differs from torch by "
            f"{worst:.2g} (logits {found['logits']:.2g}, hidden states {found['hidden']:.2g}), and {LIMIT:g} is "
            "allowed; serve it with model.device.backend=torch"
        )
    header = replace(header, checked=found)
    header.save(folder)
    return header


def compare(model: Model, session: Session, seed: int = 0) -> dict[str, float]:
    """Largest differences of logits and hidden states over all rows of a few random texts, fed in pieces, and the share
    of rows whose likeliest token is the same.
    """
    pairs = [pair for feeds in FEEDS for pair in _both(model, session, feeds, seed)]
    differing = {
        "logits": max(_largest(ours.logits, logits) for ours, logits, _ in pairs),
        "hidden": max(_largest(ours.hidden, hidden) for ours, _, hidden in pairs),
    }
    same = [(ours.logits.argmax(-1) == logits.argmax(-1)).tolist() for ours, logits, _ in pairs]
    agreeing = [one for rows in same for one in rows]
    return {**differing, "greedy": sum(agreeing) / len(agreeing), "rows": float(len(agreeing))}


def _largest(ours: np.ndarray, torchs: np.ndarray) -> float:
    return float(np.abs(ours - torchs).max())


@torch.inference_mode()
def _both(
    model: Model, session: Session, feeds: tuple[int, ...], seed: int
) -> Iterator[tuple[Ran, np.ndarray, np.ndarray]]:
    """Of each feed what the graph says of all its rows, and torch's logits and hidden states."""
    stack, slot, past = Stack(model, model.vocabulary), Slot(model, 0, len(model.layers)), session.empty()
    generator = torch.Generator().manual_seed(seed)
    for length in feeds:
        tokens = torch.randint(model.vocabulary, (length,), generator=generator).tolist()
        ran = session.run(tokens, range(length), past)
        past = ran.present
        hidden = stack.run(stack.embed(tokens), [Lot(slot, length)], 0, len(model.layers))
        normed = stack.normed(hidden)
        yield ran, stack.read_off(normed).numpy(), normed.numpy()


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
    requirements.check_libraries()
    requirements.check(checkpoint)
    model = open_model(checkpoint.where)
    if router and router.inputs != model.hidden:
        raise ValueError(
            f"the router {router} reads {router.inputs} numbers, and the hidden states of {checkpoint.named} have "
            f"{model.hidden}; train it on this model"
        )
    header = Header(
        architecture=_architecture(checkpoint), layers=len(model.layers), kv_heads=model.kv_heads,
        head_size=model.head_size, hidden=model.hidden, vocabulary=model.vocabulary, int8=int8, graphs=graphs,
        router=router.digest if router else None, made_from=checkpoint.named, weights=weights_digest(checkpoint),
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


def export_device(
    out: Path, *, device: Checkpoint, router: Path | None = None, graphs: Graphs = "one", int8: bool = False
) -> None:
    """Exports the device's model, and the policy's router where it has one; writes model.onnx, router.onnx, onnx.json
    and what the check beside torch found.
    """
    from serving.learned import router as routing

    header = export(device, out, routing.load(router) if router else None, graphs, int8)
    found = header.checked
    (out / "check.txt").write_text(
        f"{header.made_from} as an ONNX graph{' in int8' if int8 else ''}, beside torch: largest difference of logits "
        f"{found['logits']:.2g}, of hidden states {found['hidden']:.2g}; {found['greedy']:.1%} of {found['rows']:.0f} "
        "greedy tokens are the same\n",
        encoding="utf-8",
    )
