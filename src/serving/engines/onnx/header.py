"""What an exported model says of itself: onnx.json beside the graphs.

Which weights a graph was exported from: a digest of the checkpoint's files.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from serving.engines.models import Checkpoint

HEADER_FILE, MODEL_FILE, ROUTER_FILE = "onnx.json", "model.onnx", "router.onnx"
VERSION = 2
GraphLayout = Literal["one", "two"]


@dataclass(frozen=True, kw_only=True)
class OnnxHeader:
    """Raises ValueError for a version that this code does not read, and for sizes that no model has."""

    architecture: str
    """`model_type` of the checkpoint."""
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocab_size: int
    """Rows of the head, padding included."""
    int8: bool = False
    """Are the weights of matrix products stored in bytes?"""
    graphs: GraphLayout = "one"
    """one: the model's graph asks the router, too; two: only router.onnx does."""
    router_digest: str | None = None
    """The digest of the router that was exported with it."""
    router_output: Literal["logit"] = "logit"
    """What the output of this name is, in either graph: the router's number in front of the sigmoid. The score is made
    of it in float64: in the graph's float32 every logit above 17 would be exactly 1.0, which is not below 1.0.
    """
    checkpoint_name: str = ""
    weights_digest: str = ""
    """The digest of the checkpoint's weights, see `serving.engines.onnx.header`."""
    torch_differences: Mapping[str, float] = field(default_factory=dict)
    """Beside torch: largest differences of `logits` and `hidden_size`, the share of `greedy` tokens that agree."""
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"it is of version {self.version}, this code reads {VERSION}")
        if min(self.layers, self.kv_heads, self.head_size, self.hidden_size, self.vocab_size) < 1:
            raise ValueError(f"a model without layers, heads or words: {self}")

    @property
    def past_names(self) -> tuple[str, ...]:
        """Names of the cached keys and values that go in, in order; each (batch, KV heads, past, head size)."""
        return tuple(f"past.{part}" for part in self._cache_names)

    @property
    def present_names(self) -> tuple[str, ...]:
        """Names of what comes out: the same with the new rows behind it."""
        return tuple(f"present.{part}" for part in self._cache_names)

    @property
    def _cache_names(self) -> list[str]:
        return [f"{layer}.{what}" for layer in range(self.layers) for what in ("key", "value")]

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("ids", "rows", *self.past_names)

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("logits", "hidden", *(("route",) if self.has_router_output else ()), *self.present_names)

    @property
    def has_router_output(self) -> bool:
        """Does the model's own graph ask the router?"""
        return self.graphs == "one" and self.router_digest is not None

    def save(self, folder: Path) -> None:
        (folder / HEADER_FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load_header(folder: Path) -> OnnxHeader:
    """Reads the header that the stage `device_graph` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
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
"""A file, its bytes and when it was last written."""


def weights_digest(checkpoint: Checkpoint) -> str:
    """Of a directory's safetensors files (without any: its .bin files), names and contents; of the Hub's, where the
    name is all the identity, the name.

    Files of more than 1 GiB together are told by their sizes and by the first and last MiB of each, so that a model
    that was changed only in between (and whose header, which is in front, says the same) is not told apart.
    """
    if checkpoint.path is None:
        return f"hub:{checkpoint.hub}"
    found = sorted(checkpoint.path.glob("*.safetensors")) or sorted(checkpoint.path.glob("*.bin"))
    seen = [(file, file.stat()) for file in found]
    return _digest(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in seen))


@lru_cache(maxsize=16)
def _digest(files: tuple[FileStamp, ...]) -> str:
    """Read once by a process, as long as nobody writes to them."""
    parts = sum(nbytes for _, nbytes, _ in files) > MAX_FULL_HASH_NBYTES
    found = sha256()
    for file, nbytes, _ in files:
        found.update(f"{file.name} {nbytes} ".encode())
        with file.open("rb") as opened:
            if parts and nbytes > 2 * _MIB:
                found.update(opened.read(_MIB))
                opened.seek(-_MIB, 2)
            while block := opened.read(_MIB):
                found.update(block)
    return ("ends:" if parts else "") + found.hexdigest()
