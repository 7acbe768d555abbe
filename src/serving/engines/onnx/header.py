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

HEADER, MODEL, ROUTER = "onnx.json", "model.onnx", "router.onnx"
VERSION = 2
Graphs = Literal["one", "two"]


@dataclass(frozen=True, kw_only=True)
class Header:
    """Raises ValueError for a version that this code does not read, and for sizes that no model has."""

    architecture: str
    """`model_type` of the checkpoint."""
    layers: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    """Rows of the head, padding included."""
    int8: bool = False
    """Are the weights of matrix products stored in bytes?"""
    graphs: Graphs = "one"
    """one: the model's graph asks the router, too; two: only router.onnx does."""
    router: str | None = None
    """The digest of the router that was exported with it."""
    route: Literal["logit"] = "logit"
    """What the output of this name is, in either graph: the router's number in front of the sigmoid. The score is made
    of it in float64: in the graph's float32 every logit above 17 would be exactly 1.0, which is not below 1.0.
    """
    made_from: str = ""
    weights: str = ""
    """The digest of the checkpoint's weights, see `serving.engines.onnx.header`."""
    checked: Mapping[str, float] = field(default_factory=dict)
    """Beside torch: largest differences of `logits` and `hidden`, the share of `greedy` tokens that agree."""
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"it is of version {self.version}, this code reads {VERSION}")
        if min(self.layers, self.kv_heads, self.head_size, self.hidden, self.vocabulary) < 1:
            raise ValueError(f"a model without layers, heads or words: {self}")

    @property
    def past(self) -> tuple[str, ...]:
        """Names of the cached keys and values that go in, in order; each (batch, KV heads, past, head size)."""
        return tuple(f"past.{part}" for part in self._parts)

    @property
    def present(self) -> tuple[str, ...]:
        """Names of what comes out: the same with the new rows behind it."""
        return tuple(f"present.{part}" for part in self._parts)

    @property
    def _parts(self) -> list[str]:
        return [f"{layer}.{what}" for layer in range(self.layers) for what in ("key", "value")]

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("ids", "rows", *self.past)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("logits", "hidden", *(("route",) if self.routes else ()), *self.present)

    @property
    def routes(self) -> bool:
        """Does the model's own graph ask the router?"""
        return self.graphs == "one" and self.router is not None

    def save(self, folder: Path) -> None:
        (folder / HEADER).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load(folder: Path) -> Header:
    """Reads the header that the stage `device_graph` wrote.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    file = folder / HEADER
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Header(**data)
    except OSError:
        raise ValueError(
            f"there is no {file}; model.device.graph names a folder that stage=device_graph made"
        ) from None
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{file} cannot be used ({problem}); export again with force=[device_graph]") from None


WHOLE_NBYTES = 1 << 30
_MIB = 1 << 20
Seen = tuple[Path, int, int]
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
def _digest(files: tuple[Seen, ...]) -> str:
    """Read once by a process, as long as nobody writes to them."""
    parts = sum(nbytes for _, nbytes, _ in files) > WHOLE_NBYTES
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
