"""onnx.json, the description of an exported model, with a digest of the weights that it was exported from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from serving.engines.models import Checkpoint

HEADER_FILE, MODEL_FILE = "onnx.json", "model.onnx"
VERSION = 3
GraphLayout = Literal["one", "two"]


@dataclass(frozen=True, kw_only=True)
class OnnxHeader:
    """Raises ValueError for an unsupported version, and for sizes below 1."""

    architecture: str
    """`model_type` of the checkpoint."""
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocab_size: int
    """Rows of the head, padding included."""
    int8: bool = False
    """True if the weights of matrix products are stored as bytes."""
    graphs: GraphLayout = "one"
    """one: the model's graph also outputs the logits of trained scores; two: only their own graphs do."""
    scorer_digests: Mapping[str, str] = field(default_factory=dict)
    """The digests of the exported scorers, by the name of the score."""
    score_output: Literal["logit"] = "logit"
    """Graphs output a score's logit; the score is its sigmoid in float64. In float32 every logit above 17 would give
    exactly 1.0, which is not below a threshold of 1.0.
    """
    checkpoint_name: str = ""
    weights_digest: str = ""
    """See `weights_digest`."""
    torch_differences: Mapping[str, float] = field(default_factory=dict)
    """From torch: the largest differences of `logits` and `hidden` states, the share of equal `greedy` tokens."""
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"it is of version {self.version}, this code reads {VERSION}")
        if min(self.layers, self.kv_heads, self.head_size, self.hidden_size, self.vocab_size) < 1:
            raise ValueError(f"a model without layers, heads or tokens: {self}")

    @property
    def past_names(self) -> tuple[str, ...]:
        """Input names of cached keys and values, in order; each (batch, KV heads, past, head size)."""
        return tuple(f"past.{part}" for part in self._cache_names)

    @property
    def present_names(self) -> tuple[str, ...]:
        """Output names of the same with the new tokens appended."""
        return tuple(f"present.{part}" for part in self._cache_names)

    @property
    def _cache_names(self) -> list[str]:
        return [f"{layer}.{what}" for layer in range(self.layers) for what in ("key", "value")]

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("ids", "rows", *self.past_names)

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("logits", "hidden", *map(score_output, self.scores_of_graph), *self.present_names)

    @property
    def scores_of_graph(self) -> tuple[str, ...]:
        """The scores whose logits the model's own graph outputs."""
        return tuple(self.scorer_digests) if self.graphs == "one" else ()

    def save(self, folder: Path) -> None:
        (folder / HEADER_FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def score_output(name: str) -> str:
    """The name of the output that has the logit of a trained score, in the model's graph and in the score's own."""
    return f"score.{name}"


def scorer_file(name: str) -> str:
    """The file of a trained score's own graph."""
    return f"score.{name}.onnx"


def load_header(folder: Path) -> OnnxHeader:
    """Reads the header that the stage `device_graph` wrote.

    Raises ValueError that names the file if it is missing, truncated, or not of this form.
    """
    file = folder / HEADER_FILE
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return OnnxHeader(**data)
    except OSError:
        raise ValueError(
            f"there is no {file}; model.device.graph names a folder that stage=device_graph made"
        ) from None
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{file} cannot be used ({problem}); export again with force=[device_graph]") from None


MAX_FULL_HASH_NBYTES = 1 << 30
_MIB = 1 << 20
FileStamp = tuple[Path, int, int]
"""A file, its size in bytes and its modification time."""


def weights_digest(checkpoint: Checkpoint) -> str:
    """Digest of names and contents of a directory's safetensors (else .bin) files; for a Hub model, its name.

    Above 1 GiB in total, only sizes and the first and last MiB of each file count: a change between them that leaves
    the safetensors header as it was goes unnoticed.
    """
    if checkpoint.path is None:
        return f"hub:{checkpoint.hub}"
    found = sorted(checkpoint.path.glob("*.safetensors")) or sorted(checkpoint.path.glob("*.bin"))
    stats = [(file, file.stat()) for file in found]
    return _digest(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats))


@lru_cache(maxsize=16)
def _digest(files: tuple[FileStamp, ...]) -> str:
    """Cached per process while the files do not change."""
    ends_only = sum(nbytes for _, nbytes, _ in files) > MAX_FULL_HASH_NBYTES
    found = sha256()
    for file, nbytes, _ in files:
        found.update(f"{file.name} {nbytes} ".encode())
        with file.open("rb") as opened:
            if ends_only and nbytes > 2 * _MIB:
                found.update(opened.read(_MIB))
                opened.seek(-_MIB, 2)
            while block := opened.read(_MIB):
                found.update(block)
    return ("ends:" if ends_only else "") + found.hexdigest()
