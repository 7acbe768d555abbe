"""What a benchmark tool says about one kind of forward, before it is matched with a chip and an architecture."""

import re
from dataclasses import dataclass, field

from serving.hardware.architecture import Precision
from training.latency.published_speeds import Phase

NOT_DENSE_TEXT = re.compile(r"(vl|moe)(?![a-z])|vlmoe|vision|llava|mllama|mamba|rwkv|bert|(?<![a-z0-9])t5|\d+x\d", re.I)
"""Parts of names of models whose forwards do other work than a dense decoder of text."""


@dataclass(frozen=True)
class BenchmarkRun:
    """`seconds` of one forward of `batch` sessions with `new_tokens` new tokens each behind `cached_tokens`."""

    where: str
    """File and record."""
    software: str
    model: str
    """As the tool names it."""
    phase: Phase
    batch: int
    cached_tokens: int
    new_tokens: int
    seconds: float
    note: str
    precision: Precision | None = None
    """None: the tool does not say."""
    parameters: int | None = None
    """Of the model; None: the tool does not say."""
    is_known_family: bool = True
    """False: the model's family may not be a dense decoder of text; only a named architecture counts."""
    gpu_layers: int | None = None
    """Layers on the GPU, the head counted as one; None: all, or the machine has none."""
    settings: dict[str, object] = field(default_factory=dict)
    """What else the tool varies between records of the same work."""


@dataclass(frozen=True)
class Refusal:
    """A measurement that becomes no row."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason.rstrip('.')}."


def check_dense_text(name: str) -> None:
    """Raises ValueError for a name of a vision model, a mixture of experts, or another model without such a forward."""
    if found := NOT_DENSE_TEXT.search(name):
        raise ValueError(
            f"{name!r} is no dense decoder of text ({found[0]!r}): vision models, mixtures of experts, recurrent "
            "models and encoders do other work in a forward, and the clock has no shape for them"
        )
