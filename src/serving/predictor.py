"""WISP's rejection predictor as it is served: a small trained network, in numpy (section 4.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import exp, isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.scores import SCORES

HEADER, WEIGHTS = "predictor.json", "predictor.safetensors"
ROWS_AT_ONCE = 8192
Floats: TypeAlias = NDArray[np.float32]
Layer: TypeAlias = tuple[Floats, Floats]
"""Weights of shape (outputs, inputs) and biases of shape (outputs)."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """P(a drafted token is accepted), from its `SCORES`; linear layers with ReLU between them, a sigmoid behind.

    Raises ValueError for layers that do not fit each other, and for a threshold that is no chance.
    """

    layers: tuple[Layer, ...]
    """Of standardised scores; batch norms are folded into them. The last has one output."""
    mean: Floats
    """(4,) what is taken from the scores, then `deviation` divides them."""
    deviation: Floats
    threshold: float
    """A chance below it is a predicted rejection."""
    acceptance: float = 0.0
    """Share of drafted tokens that stood with this predictor, served on prompts that it was not trained on."""
    rule: str = ""
    """By which the threshold was chosen."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        widths = [len(SCORES), *(len(bias) for _, bias in self.layers)]
        if not self.layers or widths[-1] != 1 or {self.mean.shape, self.deviation.shape} != {(len(SCORES),)}:
            raise ValueError(f"a predictor goes from {len(SCORES)} scores to one chance, got layers of {widths[1:]}")
        for (weight, bias), inputs in zip(self.layers, widths[:-1], strict=True):
            if weight.shape != (len(bias), inputs):
                raise ValueError(f"a layer from {inputs} to {len(bias)} has weights of shape {weight.shape}")
        if not all(np.isfinite(each).all() for each in self._arrays().values()) or not (self.deviation > 0).all():
            raise ValueError("a weight is not finite, or a score's deviation is not above 0")
        if not 0 < self.threshold < 1:
            raise ValueError(f"the threshold is {self.threshold}; a chance of acceptance lies between 0 and 1")
        if not (isfinite(self.acceptance) and 0 <= self.acceptance <= 1):
            raise ValueError(f"the served acceptance is {self.acceptance}; it is a share")

    def __repr__(self) -> str:
        widths = "-".join(str(len(bias)) for _, bias in self.layers[:-1])
        return f"predictor {widths} {self.digest[:12]} at {self.threshold!r}"

    def chance(self, features: Sequence[float]) -> float:
        """Of one token, from its four scores."""
        hidden, (weight, bias) = self._folded
        x = np.array(features, np.float32)
        for matrix, offset in hidden:
            x = matrix.dot(x)
            x += offset
            np.maximum(x, 0.0, out=x)
        return _sigmoid(float(weight.dot(x)[0]) + float(bias[0]))

    def chances(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Of n tokens, from scores of shape (n, 4); shape (n,)."""
        rows = np.asarray(features, np.float32)
        parts = [self._logits(rows[i : i + ROWS_AT_ONCE]) for i in range(0, len(rows), ROWS_AT_ONCE)]
        return np.array([_sigmoid(logit) for part in parts for logit in part.tolist()], np.float64)

    def _logits(self, rows: Floats) -> Floats:
        hidden, (weight, bias) = self._folded
        for matrix, offset in hidden:
            rows = np.maximum(rows @ matrix.T + offset, 0.0)
        return (rows @ weight.T + bias)[:, 0]

    @cached_property
    def _folded(self) -> tuple[tuple[Layer, ...], Layer]:
        """The hidden layers and the last one, with the standardisation inside the first."""
        weight, bias = self.layers[0]
        first: Floats = np.ascontiguousarray(weight / self.deviation)
        offset: Floats = bias - first @ self.mean
        *hidden, last = ((first, offset), *self.layers[1:])
        return tuple(hidden), last

    @cached_property
    def digest(self) -> str:
        """Of all that the chances depend on."""
        found = sha256()
        for name, array in sorted(self._arrays().items()):
            found.update(f"{name} {array.shape} ".encode())
            found.update(np.ascontiguousarray(array, "<f4").tobytes())
        return found.hexdigest()

    def _arrays(self) -> dict[str, Floats]:
        named = {"mean": self.mean, "deviation": self.deviation}
        for i, (weight, bias) in enumerate(self.layers):
            named |= {f"{i}.weight": weight, f"{i}.bias": bias}
        return named

    def save(self, folder: Path) -> None:
        """Writes predictor.json and predictor.safetensors."""
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(each) for name, each in self._arrays().items()}, folder / WEIGHTS)
        header = {
            "family": "mlp",
            "features": list(SCORES),
            "layers": [len(bias) for _, bias in self.layers],
            "sha256": self.digest,
            "threshold": self.threshold,
            "rule": self.rule,
            "acceptance": self.acceptance,
            "metrics": dict(self.metrics),
            "made_from": dict(self.made_from),
        }
        (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + exp(-logit)) if logit >= 0 else 1.0 - 1.0 / (1.0 + exp(max(logit, -700.0)))


def load(path: Path) -> Predictor:
    """Reads the artifact that the stage `training.stages.train_rejection_predictor` wrote.

    Raises ValueError that names the file when it is missing, damaged, or not of this form.
    """
    header = _read(path / HEADER, _header)
    arrays = _read(path / WEIGHTS, _weights)
    try:
        return _made(header, arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"predictor {path / HEADER} cannot be used ({problem!r}); {_AGAIN}") from None


_AGAIN = "train again with stage=train"


def _read(file: Path, reader: Any) -> Any:
    if not file.is_file():
        raise ValueError(f"there is no {file}; policy.draft.predictor.path names a folder that stage=train made")
    try:
        return reader(file)
    except Exception as problem:  # SafetensorError is no ValueError
        raise ValueError(f"predictor {file} cannot be read ({problem!r}); {_AGAIN}") from None


def _header(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _weights(file: Path) -> dict[str, Floats]:
    from safetensors.numpy import load_file

    return dict(load_file(file))


def _made(header: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Predictor:
    if header["features"] != list(SCORES):
        raise ValueError(f"it reads {header['features']}, a drafter gives {list(SCORES)}")
    found = Predictor(
        tuple((arrays[f"{i}.weight"], arrays[f"{i}.bias"]) for i in range(len(header["layers"]))),
        arrays["mean"],
        arrays["deviation"],
        threshold=float(header["threshold"]),
        acceptance=float(header["acceptance"]),
        rule=str(header["rule"]),
        metrics=dict(header["metrics"]),
        made_from=dict(header["made_from"]),
    )
    if header["sha256"] != found.digest:
        raise ValueError(f"the weights beside it are {found.digest[:12]}, it was written for {header['sha256'][:12]}")
    return found
