"""The artifact `hidden.safetensors`: of whole texts the hidden states behind the first layers and behind the last.

Takes a trace of hidden states: the target writes its answers, then runs each whole text once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from serving.deployment.queries import Models, Query
from serving.engines.torch.forward import as_sent
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.outcomes.offline import play
from serving.outcomes.record import target_alone
from serving.progress import Progress
from training.fitting.splits import parted

if TYPE_CHECKING:
    from torch import Tensor

FILE, HEADER = "hidden.safetensors", "hidden.json"
TENSORS = ("shallow", "deep", "tokens", "ends", "prompts")
PARTS = (0.85, 0.075, 0.075)
"""Of the texts: training, validation, test."""


@dataclass(frozen=True, eq=False)
class Trace:
    """`n` texts that the target wrote, their `t` tokens laid end to end."""

    shallow: Tensor
    """(t, hidden), fp16: what leaves the first `layers` layers."""
    deep: Tensor
    """(t, hidden), fp16: what leaves the last layer, before the final norm."""
    tokens: Tensor
    """(t), prompts and answers."""
    ends: Tensor
    """(n): where each text ends."""
    prompts: Tensor
    """(n): tokens of each text that are its prompt."""
    names: tuple[str, ...]
    """Of each text's prompt in its data set, each once."""
    layers: int

    def __len__(self) -> int:
        return len(self.names)

    def span(self, text: int) -> tuple[int, int]:
        """Where a text lies."""
        return int(self.ends[text - 1]) if text else 0, int(self.ends[text])

    def split(self, seed: int) -> Split:
        """Training, validation and test by text. Raises ValueError where there are fewer than three."""
        if len(self) < 3:
            raise ValueError(
                f"{len(self)} texts cannot be split into training, validation and test; raise "
                "workload.profiling.prompts"
            )
        return Split(*map(tuple, parted(range(len(self)), PARTS, seed)))


@dataclass(frozen=True)
class Split:
    """Texts by their number, each in one part."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def write(folder: Path, trace: Trace, made_from: Mapping[str, str]) -> None:
    """Writes the tensors, and hidden.json with what they were made from."""
    from safetensors.torch import save_file

    save_file({name: getattr(trace, name).contiguous() for name in TENSORS}, folder / FILE)
    header = {
        "made_from": dict(made_from), "layers": trace.layers, "sequences": len(trace), "tokens": len(trace.tokens),
        "names": trace.names,
    }  # fmt: skip
    (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> Trace:
    """The trace of an artifact of `training.hat.stages.record_hidden`; raises ValueError that names a bad file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    header = _header(folder)
    try:
        tensors = load_file(folder / FILE)
        return Trace(**{name: tensors[name] for name in TENSORS}, names=tuple(header["names"]), layers=header["layers"])
    except (OSError, SafetensorError, KeyError) as problem:
        raise ValueError(f"the hidden states of {folder / FILE} cannot be read ({problem}); train again") from None


def made_from(folder: Path) -> dict[str, str]:
    """What the trace was made from: model, data, layers, seed."""
    return dict(_header(folder)["made_from"])


def _header(folder: Path) -> dict[str, Any]:
    file = folder / HEADER
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"{file} cannot be read ({problem!r}); train again with stage=train") from None
    return found


def joined(
    texts: Sequence[tuple[Tensor, Tensor, Sequence[int]]], prompts: Sequence[int], names: Sequence[str], layers: int
) -> Trace:
    """One trace of each text's (shallow, deep, tokens)."""
    import torch

    lengths = [len(tokens) for _, _, tokens in texts]
    return Trace(
        shallow=torch.cat([text[0] for text in texts]),
        deep=torch.cat([text[1] for text in texts]),
        tokens=torch.tensor([token for text in texts for token in text[2]], dtype=torch.int32),
        ends=torch.tensor(lengths).cumsum(0),
        prompts=torch.tensor(prompts),
        names=tuple(names),
        layers=layers,
    )


def record(models: Models, queries: Sequence[Query], layers: int, seed: int, progress: Progress) -> Trace:
    """The hidden states of the prompts and of the target's greedy answers to them, behind `layers` layers and all."""
    target: Any = models.cloud
    records = play(target_alone(), models, queries, seed, progress)
    texts, prompts, names = [], [], []
    for query in queries:
        text = (*query.call.prompt, *records[query.call.session].tokens)
        texts.append((*states(target.model, text, layers), text))
        prompts.append(len(query.call.prompt))
        names.append(query.prompt.id)
    return joined(texts, prompts, names, layers)


@torch.inference_mode()
def states(model: Model, text: Sequence[int], layers: int) -> tuple[Tensor, Tensor]:
    """(shallow, deep) of every token of a text, each of shape (tokens, hidden), rounded as when they travel."""
    stack, slot, depth = Stack(model, model.vocabulary), Slot(model, 0, len(model.layers)), len(model.layers)
    shallow = stack.run(stack.embed(text), [Lot(slot, len(text))], 0, layers)
    deep = stack.run(shallow, [Lot(slot, len(text), past=0)], layers, depth)
    return as_sent(shallow, "fp16").cpu(), as_sent(deep, "fp16").cpu()
