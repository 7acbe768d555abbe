"""HAT's adapter as an artifact: it makes a draft model of a target's first layers and its head (section 3.4)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving.learned.artifact import ArtifactFormat

HEADER, WEIGHTS = "adapter.json", "adapter.safetensors"
FORMAT = ArtifactFormat("adapter", HEADER, WEIGHTS, "model.device.adapter")


@dataclass(frozen=True)
class Adapter:
    """One self-attention module behind the first `shallow_layers` layers; `WEIGHTS` lie in the same folder.

    Raises ValueError for no layers or no parameters.
    """

    shallow_layers: int
    """Layers of the target that run before the module, on the device."""
    num_parameters: int
    """Trained parameters."""
    acceptance_length: float = 0.0
    """Tokens a verification, the target's own included, when served on prompts outside the training set."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shallow_layers < 1 or self.num_parameters < 1:
            raise ValueError(
                f"shallow_layers={self.shallow_layers} and num_parameters={self.num_parameters} make no draft model"
            )

    def save(self, folder: Path) -> None:
        FORMAT.save(folder, asdict(self))


def load(path: Path) -> Adapter:
    """Reads the header that the stage `training.hat.stages.train_adapter` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    header = FORMAT.read_header(path)
    with FORMAT.parsing(path):
        return Adapter(**header)
