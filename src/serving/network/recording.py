"""What somebody recorded of a link in a file, entered somewhere and repeated."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, TypeVar

from serving.core.keyed_random import luck

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Recording(ABC, Generic[T]):
    """A file of one format; it is read once, when the object is made, and all devices share what it says.

    Raises ValueError that names file and line when the file is not what its format promises; a path that an artifact
    will have is not read.
    """

    path: Path | None = None
    start: Literal["random", "begin"] = "random"
    """Where each device enters the recording: somewhere, by its luck, or where the recording begins. All recordings of
    one device are entered at the same share of their lengths."""

    def __post_init__(self) -> None:
        if self.start not in ("random", "begin"):
            raise ValueError(f"network: a recording's start={self.start!r} must be random or begin.")
        if self.path is None:
            raise ValueError(
                f"network: {type(self).__name__} is read from a file; set network.uplink.path=FILE, "
                "network.downlink.path=FILE or network.delay.path=FILE, wherever path is null."
            )
        if isinstance(self.path, Path):
            _ = self.content

    @abstractmethod
    def read(self, path: Path) -> T:
        """What the file says; raises ValueError that names file and line."""

    @cached_property
    def content(self) -> T:
        path = Path(str(self.path))
        if not path.is_file():
            problem = "is a folder; a recording is one file" if path.is_dir() else "does not exist"
            raise ValueError(f"network: {path} {problem}.")
        return self.read(path)

    @property
    def file(self) -> str:
        """The file's name, without its folder."""
        return Path(str(self.path)).name

    def share(self, stream: int) -> float:
        """Where the device with this `stream` (from `serving.core.keyed_random.key`) enters: a share of the length,
        below 1.
        """
        return luck(stream, 0, "start of a recording") if self.start == "random" else 0.0
