"""The artifact `hidden.safetensors`: hidden states of whole texts behind the first layers and behind the last one.

To record it, the target writes its answers, then runs each whole text once more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from serving.deployment.queries import LoadedModels, Query
from serving.engines.torch.forward import encode_hidden
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.outcomes.record import target_answers
from serving.progress import Progress, reported
from training.fitting.held_out import Split, random_split, with_note

TRACE_FILE, HEADER_FILE = "hidden.safetensors", "hidden.json"
TENSORS = ("shallow", "deep", "tokens", "text_ends", "prompt_lens")
SPLIT_SHARES = (0.85, 0.075, 0.075)
"""Shares of the texts: training, validation, test."""


@dataclass(frozen=True, eq=False)
class HiddenStateTrace:
    """Hidden states of `n` texts that the target wrote, their `t` tokens end to end."""

    shallow: Tensor
    """(t, hidden), fp16: output of the first `shallow_layers` layers."""
    deep: Tensor
    """(t, hidden), fp16: output of the last layer, before the final norm."""
    tokens: Tensor
    """(t), prompts and answers."""
    text_ends: Tensor
    """(n): where each text ends."""
    prompt_lens: Tensor
    """(n): tokens of each text that are its prompt."""
    prompt_ids: tuple[str, ...]
    """(n) ids of the texts' prompts in their data set, each once."""
    shallow_layers: int

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def span(self, text: int) -> tuple[int, int]:
        """(begin, end) of a text's tokens."""
        return int(self.text_ends[text - 1]) if text else 0, int(self.text_ends[text])

    def split(self, seed: int) -> "TextSplit":
        """Random split by text. Raises ValueError for fewer than three texts."""
        if len(self) < 3:
            raise ValueError(
                f"{len(self)} texts cannot be split into training, validation and test; raise "
                "workload.profiling.num_prompts"
            )
        return Split(*map(tuple, random_split(range(len(self)), SPLIT_SHARES, seed)))


TextSplit: TypeAlias = Split[tuple[int, ...]]
"""Indices of texts; each text is in one part."""


def write(folder: Path, trace: HiddenStateTrace, made_from: Mapping[str, str]) -> None:
    """Writes the tensors, and hidden.json with what they were made from."""
    from safetensors.torch import save_file

    save_file({name: getattr(trace, name).contiguous() for name in TENSORS}, folder / TRACE_FILE)
    header = {
        "made_from": dict(made_from),
        "shallow_layers": trace.shallow_layers,
        "texts": len(trace),
        "tokens": len(trace.tokens),
        "prompt_ids": trace.prompt_ids,
    }
    (folder / HEADER_FILE).write_text(json.dumps(header, indent=1), encoding="utf-8")


def read(folder: Path) -> HiddenStateTrace:
    """Reads what `training.hat.stages.record_hidden_states` wrote. Raises ValueError that names a bad file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    header = _header(folder)
    try:
        tensors = load_file(folder / TRACE_FILE)
        return HiddenStateTrace(
            **{name: tensors[name] for name in TENSORS},
            prompt_ids=tuple(header["prompt_ids"]),
            shallow_layers=header["shallow_layers"],
        )
    except (OSError, SafetensorError, KeyError) as problem:
        raise ValueError(
            f"the hidden states of {folder / TRACE_FILE} cannot be read ({problem}); train again"
        ) from None


def made_from(folder: Path) -> dict[str, str]:
    """The trace's sources: model, data, layers, seed."""
    return dict(_header(folder)["made_from"])


def _header(folder: Path) -> dict[str, Any]:
    file = folder / HEADER_FILE
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"{file} cannot be read ({problem!r}); train again with stage=train") from None
    return found


def record(
    models: LoadedModels,
    queries: Sequence[Query],
    shallow_layers: int,
    seed: int,
    progress: Progress,
    kept: Path | None = None,
) -> HiddenStateTrace:
    """Records the target's own answers, and the hidden states of prompts and answers behind `shallow_layers` layers
    and behind all. Finished answers are kept in the file `kept`.
    """
    target: Any = models.cloud
    answers = target_answers(models, queries, seed, progress, kept)
    texts = [(*query.request.prompt, *answer) for query, answer in zip(queries, answers, strict=True)]
    steps = reported(texts, with_note(progress, "hidden states"))
    states = [hidden_states(target.model, text, shallow_layers) for text in steps]
    return HiddenStateTrace(
        shallow=torch.cat([shallow for shallow, _ in states]),
        deep=torch.cat([deep for _, deep in states]),
        tokens=torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        text_ends=torch.tensor([len(text) for text in texts]).cumsum(0),
        prompt_lens=torch.tensor([len(query.request.prompt) for query in queries]),
        prompt_ids=tuple(query.prompt.id for query in queries),
        shallow_layers=shallow_layers,
    )


@torch.inference_mode()
def hidden_states(model: DecomposedModel, text: Sequence[int], shallow_layers: int) -> tuple[Tensor, Tensor]:
    """(shallow, deep) of every token of a text, each of shape (tokens, hidden), rounded to fp16 as for sending."""
    runner, depth = ModelRunner(model, model.vocab_size), len(model.layers)
    cache = SequenceCache(model, 0, depth)
    shallow = runner.run(runner.embed(text), [RunnerInput(cache, len(text))], 0, shallow_layers)
    deep = runner.run(shallow, [RunnerInput(cache, len(text), num_cached=0)], shallow_layers, depth)
    return encode_hidden(shallow, "fp16").cpu(), encode_hidden(deep, "fp16").cpu()
