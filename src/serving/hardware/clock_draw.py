"""Draws of the clock: factors by which a roofline may be off, from its errors on speeds that it was not fitted on."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, isfinite
from pathlib import Path
from typing import Any

from serving.core.keyed_random import key, uniform
from serving.hardware.fleet import Fleet
from serving.hardware.roofline import TimeFactors
from serving.hardware.testbed import Testbed, Tier

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

    def factors(self, draw: int, chip: str, software: str) -> TimeFactors:
        """The factors of one chip and software in one draw: the same in every run that draws it from this pool."""
        stream = key(0, f"clock {chip} {software}")
        return TimeFactors(
            read=exp(self.decode[int(uniform(stream, draw, "decode") * len(self.decode))]),
            compute=exp(self.prefill[int(uniform(stream, draw, "prefill") * len(self.prefill))]),
        )


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


def drawn_fleet(fleet: Fleet, errors: ClockErrors, draw: int) -> Fleet:
    """The fleet on the clock of one draw. Fitted and profiled coefficients are measurements, and stay; a model that has
    none of its own there is on the roofline, which is drawn.
    """
    if not fleet.chip.software:
        return fleet
    software = fleet.chip.software_name(fleet.software)
    return replace(fleet, time_factors=_pool_of(fleet, errors).factors(draw, fleet.chip.name, software))


def _pool_of(fleet: Fleet, errors: ClockErrors) -> ErrorPool:
    software = fleet.chip.software_name(fleet.software)
    checked = fleet.chip.software[software].is_checked
    return errors.pool(fleet.chip.name, software, _modes_of(fleet), checked=checked)


def _modes_of(fleet: Fleet) -> tuple[str, ...]:
    return fleet.schedule.modes if fleet.schedule else (fleet.mode_name,)


def pool_identities(fleets: Iterable[Fleet], errors: ClockErrors) -> dict[str, str]:
    """`chip mode software` -> identity of the pool that such fleets are drawn from; of several modes, with `+`."""
    return {
        f"{fleet.chip.name} {'+'.join(sorted(set(_modes_of(fleet))))} {fleet.chip.software_name(fleet.software)}":
            _pool_of(fleet, errors).identity
        for fleet in fleets
        if fleet.chip.software
    }  # fmt: skip


def split_pool_key(name: str) -> tuple[str, tuple[str, ...], str]:
    """Chip, modes and software of a key of `pool_identities`. Raises ValueError for another text."""
    chip, modes, software = name.rsplit(" ", 2)
    return chip, tuple(modes.split("+")), software


def drawn_testbed(testbed: Testbed, errors: ClockErrors, draw: int) -> Testbed:
    """The testbed with every fleet on the clock of one draw."""

    def drawn(fleet: Fleet) -> Fleet:
        return drawn_fleet(fleet, errors, draw)

    return replace(
        testbed,
        cloud=drawn(testbed.cloud) if testbed.cloud else None,
        device=drawn(testbed.device) if testbed.device else None,
        fleets=tuple(map(drawn, testbed.fleets)),
        tiers={name: _drawn_tier(tier, drawn) for name, tier in testbed.tiers.items()},
    )


def _drawn_tier(tier: Tier, drawn: Callable[[Fleet], Fleet]) -> Tier:
    return replace(tier, nodes=drawn(tier.nodes), other_nodes=tuple(map(drawn, tier.other_nodes)))


def as_json(errors: Mapping[str, list[float]], modes: MeasuredModes | None = None) -> str:
    """What `ClockErrors.read` reads, four digits each."""
    rounded = {name: [round(error, 4) for error in sorted(own)] for name, own in errors.items()}
    return json.dumps(rounded | ({"modes": modes} if modes else {})) + "\n"
