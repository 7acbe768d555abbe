"""The power of a device's radio: joules for each byte, watts while it is awake, and its tail."""

from dataclasses import dataclass, field, fields
from math import isfinite

from serving.core.provenance import check_sources


@dataclass(frozen=True)
class Radio:
    """Joules a megabyte (10^6 bytes), watts while a message is in the air, and watts for a time after the last one.

    Source: Huang et al., A Close Examination of Performance and Power Characteristics of 4G LTE Networks, MobiSys 2012,
    section 4: P = alpha_u t_u + alpha_d t_d + beta during a transfer, then a tail, and a promotion before the next one.
    Idle power (paging, beacons) is left out: it does not depend on the policy.
    """

    up_j_per_mb: float
    """alpha_u: beside `awake_w`, for what the device sends."""
    down_j_per_mb: float
    """alpha_d: beside `awake_w`, for what it receives."""
    awake_w: float
    """beta: while a message is in the air."""
    tail_w: float
    """While the radio waits for more, until it sleeps."""
    tail_s: float
    wake_j: float = 0.0
    """Waking up: the power of a promotion times its time."""
    sources: dict[str, str] = field(default_factory=dict)
    """Sources of these figures; the key `all` stands for each without its own."""

    def __post_init__(self) -> None:
        check_sources("network.radio", self.sources, _FIGURES | {"all"})
        for name in sorted(_FIGURES):
            value = getattr(self, name)
            if not (value >= 0 and isfinite(value)):
                raise ValueError(
                    f"network.radio: {name}={value} must be 0 or more, and finite; for a link whose figures are not "
                    "known set network.radio=null."
                )

    def joules(self, up_nbytes: float, down_nbytes: float, air_s: float, tail_s: float, wakes: int) -> float:
        """Energy of what was sent and received while the radio was awake for `air_s` and in its tail for `tail_s`."""
        transfer_j = 1e-6 * (self.up_j_per_mb * up_nbytes + self.down_j_per_mb * down_nbytes)
        return transfer_j + self.awake_w * air_s + self.tail_w * tail_s + self.wake_j * wakes

    @property
    def described(self) -> str:
        if not any(getattr(self, name) for name in _FIGURES):
            return f"none ({self._evidence})"
        return (
            f"{self.up_j_per_mb:.3g} J a MB up, {self.down_j_per_mb:.3g} down, {self.awake_w:.3g} W in the air, "
            f"{self.tail_w:.3g} W for {self.tail_s:.3g} s after, {self.wake_j:.3g} J to wake ({self._evidence})"
        )

    @property
    def _evidence(self) -> str:
        return "; ".join(dict.fromkeys(self.sources.values())) or "no source"


_FIGURES = frozenset(each.name for each in fields(Radio)) - {"sources"}
