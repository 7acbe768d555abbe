"""The weights of a small network by name: their digest, and the file that they are kept in."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]


def digest(arrays: Mapping[str, Floats]) -> str:
    """Of names, shapes and numbers."""
    found = sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array, "<f4").tobytes())
    return found.hexdigest()


def save(arrays: Mapping[str, Floats], file: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(each) for name, each in arrays.items()}, file)


def load(file: Path) -> dict[str, Floats]:
    from safetensors.numpy import load_file

    return dict(load_file(file))
