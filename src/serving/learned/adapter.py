"""HAT's adapter as an artifact: what makes a draft model of a target's first layers and its head (section 3.4)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HEADER, WEIGHTS = "adapter.json", "adapter.safetensors"


@dataclass(frozen=True)
class Adapter:
    """One self-attention module behind the first `shallow_layers` layers; `WEIGHTS` lie in the same folder.

    Raises ValueError for a header that says too little.
    """

    shallow_layers: int
    """Layers of the target that run here, before it."""
    num_parameters: int
    """That were trained."""
    acceptance_length: float = 0.0
    """Tokens a round when it was served on prompts that it was not trained on, the target's own included."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shallow_layers < 1 or self.num_parameters < 1:
            raise ValueError(
                f"shallow={self.shallow_layers} layers and {self.num_parameters} parameters make no draft model"
            )

    def save(self, folder: Path) -> None:
        (folder / HEADER).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load(path: Path) -> Adapter:
    """Reads the header that the stage `training.hat.stages.train_adapter` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    file = path / HEADER
    try:
        return Adapter(**json.loads(file.read_text(encoding="utf-8")))
    except OSError:
        raise ValueError(f"there is no {file}; model.device.adapter names a folder that stage=train made") from None
    except (ValueError, TypeError) as problem:
        raise ValueError(f"adapter {file} cannot be read ({problem}); train again with stage=train") from None
