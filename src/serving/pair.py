"""A model pair: where the tokens come from, and whose cost they stand for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.architecture import Architecture
from serving.engine.architectures import ARCHITECTURES

Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A causal LM that `transformers` loads from a directory, or from the Hub, where its name is all its identity.

    Raises ValueError for a directory that holds no causal LM.
    """

    path: Path | None = None
    hub: str | None = None
    dtype: Dtype = "fp32"
    """Of the computation on this machine; what the named hardware computes in is the fleet's `precision`."""

    def __post_init__(self) -> None:
        if self.path is None and self.hub is None:
            raise ValueError(
                "model: neither path nor hub says where the checkpoint is; set model.device.path and model.cloud.path"
            )
        if self.path is not None and self.hub is not None:
            raise ValueError(f"model: both a path and hub={self.hub} are given; set path=null to take the Hub's")
        if isinstance(self.path, Path):
            _check(self.path)

    @property
    def where(self) -> str:
        """What `transformers` is given."""
        return str(self.path or self.hub)


@dataclass(frozen=True, kw_only=True)
class Model(Checkpoint):
    """A checkpoint that stands for the architecture `timing`, which decides seconds, bytes and memory."""

    timing: Architecture


@dataclass(frozen=True)
class Pair:
    """The device's model and the cloud's; they must share a tokenizer.

    Raises ValueError for checkpoints whose tokenizers differ, as far as their files tell.
    """

    device: Model
    cloud: Model
    embedded: bool = False
    """Is it the pair that the project trains itself?"""

    def __post_init__(self) -> None:
        if isinstance(self.device.path, Path) and isinstance(self.cloud.path, Path):
            from serving.engine.tokenizer import same_tokenizer

            same_tokenizer(self.device.path, self.cloud.path)


def _check(path: Path) -> None:
    """Refuses what is not a causal LM's directory, without loading anything."""
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{path} holds no config.json; give the directory of a Hugging Face checkpoint")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        names, kind = config.get("architectures") or [], config.get("model_type")
    except (ValueError, AttributeError) as problem:
        raise ValueError(f"{file} is damaged ({problem}); fetch or train the checkpoint again") from problem
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise ValueError(f"{path} holds {', '.join(names)}, which is not a causal LM; give a ...ForCausalLM checkpoint")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"{path} is of architecture {kind!r}, which the engine cannot take apart; it knows {known}")
