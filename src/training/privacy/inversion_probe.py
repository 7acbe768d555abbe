"""What a cloud can tell of a user's text from the hidden states that a split model sends it: measured, not argued."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.engines.models import Checkpoint
from serving.hardware.payload_size import Number
from serving.progress import Progress
from training.fitting.trainer import ALL_CORES, Trainer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from serving.engines.torch.model import Model
    from training.hat.trace import Trace


@dataclass(frozen=True)
class Probe:
    """How the linear probe is trained: softmax regression by AdamW on hidden states of unit variance."""

    steps: int = 1500
    rows: int = 512
    rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"probe.{name} must be above 0, got {getattr(self, name)}")


def measure_leak(
    out: Path,
    *,
    progress: Progress,
    trace: Path,
    cloud: Checkpoint,
    probe: Probe = Probe(),
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Recovers tokens from the hidden states of a trace, on texts that the probe was not trained on: rows.json.

    Uploaded states by a linear probe, and by the nearest embedding, which takes no training; downloaded ones by the
    model's own head, which whoever serves the model knows. The share of the most frequent token stands beside them.
    """
    from serving.engines.torch.model import open_model
    from training.hat import trace as traces

    found = traces.read(trace)
    with trainer.using_threads():
        rows = _measured(found, open_model(cloud.where), probe, seed, progress)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")


def _measured(trace: Trace, model: Model, probe: Probe, seed: int, progress: Progress) -> dict[str, dict[str, float]]:
    split = trace.split(seed)
    train, test = _places(trace, split.train), _places(trace, (*split.validation, *split.test))
    sent: tuple[Number, ...] = ("fp16", "int8")
    rows = {"most frequent token": _shares(trace, test, lambda at: _commonest(trace, train).expand(len(at)))}
    rows["uploaded, nearest embedding"] = _shares(trace, test, lambda at: _nearest(model, trace.shallow[at].float()))
    for i, number in enumerate(sent):
        states = _received(trace.shallow, number)
        weights = _trained(states, trace.tokens, train, model.vocabulary, probe)
        rows[f"uploaded in {number}, linear probe"] = _shares(trace, test, lambda at: weights(states[at]))  # noqa: B023
        progress(i + 1, len(sent), f"probe on {number}")
    rows["downloaded, the model's own head"] = {"next": _foretold(trace, model, test)}
    return rows


def _places(trace: Trace, texts: Sequence[int]) -> Tensor:
    import torch

    return torch.cat([torch.arange(*trace.span(text)) for text in texts])


def _received(states: Tensor, number: Number) -> Tensor:
    import torch

    from serving.engines.torch.forward import as_received, as_sent

    return as_received(as_sent(states.float(), number), torch.empty(0))


def _trained(
    states: Tensor, tokens: Tensor, places: Tensor, vocabulary: int, probe: Probe
) -> Callable[[Tensor], Tensor]:
    """The token that a linear probe sees in each state."""
    import torch
    import torch.nn.functional as F

    chance = torch.Generator().manual_seed(probe.seed)
    mean, deviation = states[places].mean(0), states[places].std(0).clamp_min(1e-6)
    linear = torch.nn.Linear(states.shape[1], vocabulary)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=probe.rate)
    for _ in range(probe.steps):
        at = places[torch.randint(len(places), (probe.rows,), generator=chance)]
        loss = F.cross_entropy(linear((states[at] - mean) / deviation), tokens[at].long())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def guess(seen: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = linear((seen - mean) / deviation).argmax(-1)
        return found

    return guess


def _nearest(model: Model, states: Tensor) -> Tensor:
    import torch.nn.functional as F

    embeddings: torch.Tensor = model.embed.weight.detach().float()  # type: ignore[operator]
    return (F.normalize(states, dim=-1) @ F.normalize(embeddings, dim=-1).T).argmax(-1)


def _commonest(trace: Trace, places: Tensor) -> Tensor:
    return trace.tokens[places].mode().values


def _shares(trace: Trace, places: Tensor, guess: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Of the tokens of prompts and of answers the share that is guessed."""
    right = guess(places) == trace.tokens[places]
    prompt = _is_prompt(trace)[places]
    return {"prompts": float(right[prompt].float().mean()), "answers": float(right[~prompt].float().mean())}


def _is_prompt(trace: Trace) -> Tensor:
    import torch

    found = torch.zeros(len(trace.tokens), dtype=torch.bool)
    for text in range(len(trace)):
        begin, _ = trace.span(text)
        found[begin : begin + int(trace.prompts[text])] = True
    return found


def _foretold(trace: Trace, model: Model, places: Tensor) -> float:
    """Of the answers' tokens those that the head reads off the state before."""
    import torch

    answers = places[~_is_prompt(trace)[places]]
    with torch.no_grad():
        seen = model.head(model.norm(trace.deep[answers - 1].to(model.dtype))).argmax(-1)
    return float((seen == trace.tokens[answers]).float().mean())
