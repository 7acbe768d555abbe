"""The pools of held-out errors that draws of the clock take, and which chip, mode and software takes which.

The pipeline imports this module, too, to tell whether kept draws would be taken from other pools today, and which chips
share a processor.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

HELD_OUT_ERROR = "off on held-out decodes"
"""What the source of a software's figures says of a check on rows that the fit had not seen."""

DRAWN_FILE = "drawn.json"
"""What a stage drew, beside the folders of its draws: {pools: {chip, modes, software: pool}, prompts, requests}."""

_RULE = 1
"""A part of every pool's identity. Raise it when draws from the same pool come out otherwise: other random numbers, or
other times that an error multiplies.
"""

MeasuredModes = Mapping[str, Mapping[str, Collection[str]]]
"""Chip -> software -> the power modes in which rows of this software were measured on the chip's processor."""


@dataclass(frozen=True)
class ErrorPool:
    """What the errors of one chip and software are drawn from, each log(measured / predicted)."""

    name: str
    decode: tuple[float, ...]
    prefill: tuple[float, ...]

    @property
    def identity(self) -> str:
        """The name, and a digest of all that decides a draw from this pool."""
        text = json.dumps([_RULE, self.decode, self.prefill])
        return f"{self.name} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class ClockErrors:
    """Held-out errors of the clock, each log(measured / predicted), a median for each source, processor and software.

    decode, prefill    of software on a processor of which the fit had seen other rows
    decode_unmeasured, prefill_unmeasured    of processors of which the fit had seen no row
    modes    a chip that is not named has figures of its user's: each of its modes counts as measured
    """

    decode: tuple[float, ...]
    prefill: tuple[float, ...]
    decode_unmeasured: tuple[float, ...]
    prefill_unmeasured: tuple[float, ...]
    modes: MeasuredModes = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ERROR_LISTS:
            errors = getattr(self, name)
            if not errors or not all(map(isfinite, errors)):
                raise ValueError(f"{name} must be finite numbers, one at least")

    @classmethod
    def read(cls, path: Path) -> "ClockErrors":
        """The errors in a JSON file of these four lists, and of `modes` if it has them. Raises ValueError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            modes = {chip: dict(own) for chip, own in found.pop("modes", {}).items()}
            return cls(**{name: tuple(map(float, errors)) for name, errors in found.items()}, modes=modes)
        except (OSError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(f"{path} has no errors of the clock: {problem}.") from problem

    def pool(self, chip: str, software: str, modes: Collection[str], *, checked: bool) -> ErrorPool:
        """The pool for a chip that runs in these `modes`. Figures that were not `checked`, and those in a mode without
        a row, may be as far off as those of a processor without rows.
        """
        if checked and self._have_rows(chip, software, modes):
            return ErrorPool("another source", self.decode, self.prefill)
        return ErrorPool("another processor", self.decode_unmeasured, self.prefill_unmeasured)

    def _have_rows(self, chip: str, software: str, modes: Collection[str]) -> bool:
        known = self.modes.get(chip)
        return known is None or set(modes) <= set(known.get(software, ()))


ERROR_LISTS = ("decode", "prefill", "decode_unmeasured", "prefill_unmeasured")


def processor_of(chip: str) -> str:
    """The chip's name without its memory: boards of one family share their processor."""
    words = chip.removesuffix("_super").split("_")
    return "_".join(word for word in words if not word.endswith("gb"))


def is_checked(source: str) -> bool:
    """True if the source of a software's figures names measured rows and an error on rows that a fit had not seen."""
    return source.startswith("measured") and HELD_OUT_ERROR in source


def split_pool_key(name: str) -> tuple[str, tuple[str, ...], str]:
    """Chip, modes and software of a key of `pool_identities`. Raises ValueError for another text."""
    chip, modes, software = name.rsplit(" ", 2)
    return chip, tuple(modes.split("+")), software
