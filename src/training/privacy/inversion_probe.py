"""Measures how much of a user's text a cloud can recover from the hidden states that a split model sends."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.engines.models import Checkpoint
from serving.hardware.payload_size import HiddenDtype
from serving.progress import Progress
from training.fitting.recipe import check_above_zero
from training.fitting.trainer import CPU_TRAINER, Trainer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from serving.engines.torch.model import DecomposedModel
    from training.hat.trace import HiddenStateTrace


@dataclass(frozen=True)
class LinearProbe:
    """Training of the linear probe: softmax regression by AdamW on hidden states of unit variance."""

    steps: int = 1500
    batch_size: int = 512
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_above_zero(self, "steps", "batch_size", "learning_rate", prefix="probe")


def measure_inversion(
    out: Path,
    *,
    progress: Progress,
    trace: Path,
    cloud: Checkpoint,
    probe: LinearProbe = LinearProbe(),
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Recovers tokens from the hidden states of a trace, on texts that the probe was not trained on: rows.json.

    Uploaded states are attacked by a linear probe and by the nearest embedding, which needs no training; downloaded
    states by the model's own head, which the cloud knows. The baseline is the most frequent token. `seed` splits the
    texts, `probe.seed` draws the probe's batches; its weights begin at 0. The probe alone runs on the trainer's device.
    """
    from serving.engines.torch.model import load_model
    from training.hat import trace as traces

    found = traces.read(trace)
    with trainer.using_threads():
        rows = _recovery_rows(found, load_model(cloud.name_or_path), probe, seed, trainer.torch_device, progress)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")


def _recovery_rows(
    trace: "HiddenStateTrace",
    model: "DecomposedModel",
    probe: LinearProbe,
    seed: int,
    device: str,
    progress: Progress,
) -> dict[str, dict[str, float]]:
    split = trace.split(seed)
    train, test = _token_indices(trace, split.train), _token_indices(trace, (*split.validation, *split.test))
    number_formats: tuple[HiddenDtype, ...] = ("fp16", "int8")
    rows = {
        "most frequent token": _recovered_shares(
            trace, test, lambda at: _most_frequent_token(trace, train).expand(len(at))
        )
    }
    rows["uploaded, nearest embedding"] = _recovered_shares(
        trace, test, lambda at: _nearest_embedding(model, trace.shallow[at].float())
    )
    for i, number_format in enumerate(number_formats):
        rows[f"uploaded in {number_format}, linear probe"] = _probe_shares(
            trace, _round_trip(trace.shallow, number_format), train, test, model.vocab_size, probe, device
        )
        progress(i + 1, len(number_formats), f"probe on {number_format}")
    rows["downloaded, the model's own head"] = {"next_token_accuracy": _predicted_next_share(trace, model, test)}
    return rows


def _probe_shares(
    trace: "HiddenStateTrace",
    states: "Tensor",
    train: "Tensor",
    test: "Tensor",
    vocabulary: int,
    probe: LinearProbe,
    device: str,
) -> dict[str, float]:
    predict = _train_probe(states, trace.tokens, train, vocabulary, probe, device)
    return _recovered_shares(trace, test, lambda at: predict(states[at]))


def _token_indices(trace: "HiddenStateTrace", texts: Sequence[int]) -> "Tensor":
    import torch

    return torch.cat([torch.arange(*trace.span(text)) for text in texts])


def _round_trip(states: "Tensor", number_format: HiddenDtype) -> "Tensor":
    import torch

    from serving.engines.torch.forward import decode_hidden, encode_hidden

    return decode_hidden(encode_hidden(states.float(), number_format), torch.empty(0))


def _train_probe(
    states: "Tensor", tokens: "Tensor", token_indices: "Tensor", vocabulary: int, probe: LinearProbe, device: str
) -> "Callable[[Tensor], Tensor]":
    """Trains a linear probe on `device`, where the returned function predicts the token of each state.

    All tensors are of the CPU, as are the drawn batches, which are the same on any device.
    """
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(probe.seed)
    mean = states[token_indices].mean(0).to(device)
    deviation = states[token_indices].std(0).clamp_min(1e-6).to(device)
    linear = torch.nn.Linear(states.shape[1], vocabulary).to(device)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=probe.learning_rate)
    for _ in range(probe.steps):
        at = token_indices[torch.randint(len(token_indices), (probe.batch_size,), generator=generator)]
        loss = F.cross_entropy(linear((states[at].to(device) - mean) / deviation), tokens[at].long().to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def predict(hidden: "Tensor") -> "Tensor":
        with torch.no_grad():
            found: Tensor = linear((hidden.to(device) - mean) / deviation).argmax(-1).cpu()
        return found

    return predict


def _nearest_embedding(model: "DecomposedModel", states: "Tensor") -> "Tensor":
    import torch.nn.functional as F

    embeddings: torch.Tensor = model.embed.weight.detach().float()  # type: ignore[operator]
    return (F.normalize(states, dim=-1) @ F.normalize(embeddings, dim=-1).T).argmax(-1)


def _most_frequent_token(trace: "HiddenStateTrace", token_indices: "Tensor") -> "Tensor":
    return trace.tokens[token_indices].mode().values


def _recovered_shares(
    trace: "HiddenStateTrace", token_indices: "Tensor", predict: "Callable[[Tensor], Tensor]"
) -> dict[str, float]:
    """Shares of the prompts' and of the answers' tokens that are recovered."""
    right = predict(token_indices) == trace.tokens[token_indices]
    prompt = _is_prompt(trace)[token_indices]
    return {
        "prompt_token_accuracy": float(right[prompt].float().mean()),
        "answer_token_accuracy": float(right[~prompt].float().mean()),
    }


def _is_prompt(trace: "HiddenStateTrace") -> "Tensor":
    import torch

    found = torch.zeros(len(trace.tokens), dtype=torch.bool)
    for text in range(len(trace)):
        begin, _ = trace.span(text)
        found[begin : begin + int(trace.prompt_lens[text])] = True
    return found


def _predicted_next_share(trace: "HiddenStateTrace", model: "DecomposedModel", token_indices: "Tensor") -> float:
    """Share of the answers' tokens that the head predicts from the state before."""
    import torch

    answers = token_indices[~_is_prompt(trace)[token_indices]]
    with torch.no_grad():
        seen = model.lm_head(model.norm(trace.deep[answers - 1].to(model.dtype))).argmax(-1)
    return float((seen == trace.tokens[answers]).float().mean())
