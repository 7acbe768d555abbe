"""Takes a trace of hidden states: the target writes its answers, then runs each whole text once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from serving.deployment.queries import Models, Query
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.engines.torch.wire import as_sent
from serving.outcomes.offline import play
from serving.outcomes.record import target_alone
from serving.progress import Progress
from training.hat import trace

if TYPE_CHECKING:
    from torch import Tensor


def record(models: Models, queries: Sequence[Query], layers: int, seed: int, progress: Progress) -> trace.Trace:
    """The hidden states of the prompts and of the target's greedy answers to them, behind `layers` layers and all."""
    target: Any = models.cloud
    records = play(target_alone(), models, queries, seed, progress)
    texts, prompts, names = [], [], []
    for query in queries:
        text = (*query.call.prompt, *records[query.call.session].tokens)
        texts.append((*states(target.model, text, layers), text))
        prompts.append(len(query.call.prompt))
        names.append(query.prompt.id)
    return trace.joined(texts, prompts, names, layers)


@torch.inference_mode()
def states(model: Model, text: Sequence[int], layers: int) -> tuple[Tensor, Tensor]:
    """(shallow, deep) of every token of a text, each of shape (tokens, hidden), rounded as when they travel."""
    stack, slot, depth = Stack(model, model.vocabulary), Slot(model, 0, len(model.layers)), len(model.layers)
    shallow = stack.run(stack.embed(text), [Lot(slot, len(text))], 0, layers)
    deep = stack.run(shallow, [Lot(slot, len(text), past=0)], layers, depth)
    return as_sent(shallow, "fp16").cpu(), as_sent(deep, "fp16").cpu()
