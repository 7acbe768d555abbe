"""The format of trained and recorded artifacts: a JSON header, and arrays by name in a safetensors file beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"
T = TypeVar("T")


@dataclass(frozen=True)
class ArtifactFormat:
    """The files of one kind of artifact. Errors name the file, the setting that points to it and how to build it."""

    kind: str
    header_file: str
    weights_file: str
    setting: str
    """The configuration key whose value is the artifact's folder."""
    stage: str = "train"
    """The stage that builds the artifact."""
    version: int = 1

    def save(self, folder: Path, header: Mapping[str, Any], weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        if weights is not None:
            import numpy as np
            from safetensors.numpy import save_file

            save_file({name: np.ascontiguousarray(each) for name, each in weights.items()}, folder / self.weights_file)
        text = json.dumps({"version": self.version, **header}, indent=1)
        (folder / self.header_file).write_text(text, encoding="utf-8")

    def read_header(self, folder: Path) -> dict[str, Any]:
        """Raises ValueError when the header is missing, not JSON, or of another version."""
        return self._read(folder / self.header_file, self._parse_header)

    def _parse_header(self, file: Path) -> dict[str, Any]:
        header: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if (found := header.pop("version", 1)) != self.version:
            raise ValueError(f"it is of version {found}, this code reads {self.version}")
        return header

    def read_weights(self, folder: Path) -> dict[str, NDArray[Any]]:
        """Raises ValueError when the weights are missing or damaged."""
        from safetensors.numpy import load_file

        return self._read(folder / self.weights_file, lambda file: dict(load_file(file)))

    @contextmanager
    def parsing(self, folder: Path) -> Iterator[None]:
        """Turns any error in the block into a ValueError that names the header."""
        try:
            yield
        except Exception as problem:
            raise self._unreadable(folder / self.header_file, problem) from None

    def _read(self, file: Path, read: Callable[[Path], T]) -> T:
        if not file.is_file():
            raise ValueError(f"there is no {file}; {self.setting} names a folder that stage={self.stage} made")
        try:
            return read(file)
        except Exception as problem:  # SafetensorError is no ValueError
            raise self._unreadable(file, problem) from None

    def _unreadable(self, file: Path, problem: Exception) -> UnreadableError:
        return UnreadableError(
            repr(problem),
            f"{self.kind} {file} cannot be read ({problem!r}); build it again: remove {file.parent} and repeat the "
            f"command that made it (stage={self.stage})",
        )


class UnreadableError(ValueError):
    """An artifact's file that cannot be read; `reason` is what is wrong with it, without the file and the remedy."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def digest(weights: Mapping[str, Floats]) -> str:
    """SHA-256 of names, shapes and values."""
    import numpy as np

    found = sha256()
    for name, array in sorted(weights.items()):
        found.update(f"{name} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array, "<f4").tobytes())
    return found.hexdigest()


def check_digest(expected: str, found: str) -> None:
    """Raises ValueError for weights that are not those that the header was written for."""
    if expected != found:
        raise ValueError(f"the weights beside it are {found[:12]}, it was written for {expected[:12]}")
