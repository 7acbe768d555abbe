"""Draws of the clock: factors by which a roofline may be off, from its errors on speeds that it was not fitted on."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, isfinite
from pathlib import Path
from typing import Any

from serving.core.keyed_random import key, uniform
from serving.hardware.fleet import Fleet
from serving.hardware.roofline import TimeFactors
from serving.hardware.testbed import Testbed, Tier


@dataclass(frozen=True)
class ClockErrors:
    """Held-out errors of the clock, each log(measured / predicted), a median for each source, processor and software.

    decode, prefill    of software on a processor of which the fit had seen other rows
    decode_unmeasured, prefill_unmeasured    of processors of which the fit had seen no row
    """

    decode: tuple[float, ...]
    prefill: tuple[float, ...]
    decode_unmeasured: tuple[float, ...]
    prefill_unmeasured: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, errors in vars(self).items():
            if not errors or not all(map(isfinite, errors)):
                raise ValueError(f"{name} must be finite numbers, one at least")

    @classmethod
    def read(cls, path: Path) -> "ClockErrors":
        """The errors in a JSON file of these four lists. Raises ValueError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: tuple(map(float, errors)) for name, errors in found.items()})
        except (OSError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(f"{path} has no errors of the clock: {problem}.") from problem

    def factors(self, draw: int, chip: str, software: str, *, checked: bool) -> TimeFactors:
        """The factors of one chip and software in one draw: the same in every run that has the chip. Figures that were
        not `checked` may be as far off as those of a processor without rows.
        """
        stream = key(0, f"clock {chip} {software}")
        decode = self.decode if checked else self.decode_unmeasured
        prefill = self.prefill if checked else self.prefill_unmeasured
        return TimeFactors(
            read=exp(decode[int(uniform(stream, draw, "decode") * len(decode))]),
            compute=exp(prefill[int(uniform(stream, draw, "prefill") * len(prefill))]),
        )


def drawn_fleet(fleet: Fleet, errors: ClockErrors, draw: int) -> Fleet:
    """The fleet on the clock of one draw. Fitted and profiled coefficients are measurements, and stay; a model that has
    none of its own there is on the roofline, which is drawn.
    """
    if not fleet.chip.software:
        return fleet
    software = fleet.chip.software_name(fleet.software)
    checked = fleet.chip.software[software].is_checked
    factors = errors.factors(draw, fleet.chip.name, software, checked=checked)
    return replace(fleet, time_factors=factors)


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


def as_json(errors: Mapping[str, list[float]]) -> str:
    """What `ClockErrors.read` reads, four digits each."""
    return json.dumps({name: [round(error, 4) for error in sorted(own)] for name, own in errors.items()}) + "\n"
