"""The battery of a device."""

from dataclasses import dataclass

from serving.core.provenance import check_date, evidence_class

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
        check_date("battery", self.date, "figure")

    def share(self, joules: float) -> float:
        """The share of a full battery that so much energy is; above 1 if one charge does not last."""
        return joules / (self.wh * _WH_J)
