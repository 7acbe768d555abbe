"""The battery of a device."""

import re
from dataclasses import dataclass

from serving.core.provenance import evidence_class

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_WH_J = 3600.0


@dataclass(frozen=True)
class Battery:
    """`wh` watt hours when full and new; `source` begins with its evidence class, `date` is YYYY-MM or YYYY-MM-DD."""

    wh: float
    source: str
    date: str

    def __post_init__(self) -> None:
        if not self.wh > 0:
            raise ValueError(f"battery: wh={self.wh} must be above 0.")
        evidence_class(self.source)
        if not _DATE.fullmatch(self.date):
            raise ValueError(f"battery: date={self.date!r} must be the day or month of the figure, as in '2026-11-22'.")

    def share(self, joules: float) -> float:
        """The share of a full battery that so much energy is; above 1 if one charge does not last."""
        return joules / (self.wh * _WH_J)
