"""Draws of the clock: factors by which a roofline may be off, from its errors on speeds that it was not fitted on."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import exp

from serving.core.keyed_random import key, uniform
from serving.hardware.error_pools import ClockErrors, ErrorPool, MeasuredModes
from serving.hardware.fleet import Fleet
from serving.hardware.roofline import TimeFactors
from serving.hardware.testbed import Testbed, Tier


def _factors(pool: ErrorPool, draw: int, chip: str, software: str) -> TimeFactors:
    """The factors of one chip and software in one draw: the same in every run that draws it from this pool."""
    stream = key(0, f"clock {chip} {software}")
    return TimeFactors(
        read=exp(pool.decode[int(uniform(stream, draw, "decode") * len(pool.decode))]),
        compute=exp(pool.prefill[int(uniform(stream, draw, "prefill") * len(pool.prefill))]),
    )


def drawn_fleet(fleet: Fleet, errors: ClockErrors, draw: int) -> Fleet:
    """The fleet on the clock of one draw. Fitted and profiled coefficients are measurements, and stay; a model that has
    none of its own there is on the roofline, which is drawn.
    """
    if not fleet.chip.software:
        return fleet
    software = fleet.chip.software_name(fleet.software)
    return replace(fleet, time_factors=_factors(_pool_of(fleet, errors), draw, fleet.chip.name, software))


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
