"""Which weights a graph was exported from: a digest of the checkpoint's files."""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from serving.engines.models import Checkpoint

WHOLE_NBYTES = 1 << 30
_MIB = 1 << 20
Seen = tuple[Path, int, int]
"""A file, its bytes and when it was last written."""


def digest(checkpoint: Checkpoint) -> str:
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
