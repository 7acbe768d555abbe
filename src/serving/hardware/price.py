"""The price of a chip: what an hour of it costs, according to which source, and of which day."""

from dataclasses import dataclass

from serving.core.provenance import check_date, evidence_class

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Price:
    """`usd_per_hour` of one chip; `source` begins with its evidence class; `date` is YYYY-MM or YYYY-MM-DD."""

    usd_per_hour: float
    source: str
    date: str

    def __post_init__(self) -> None:
        if self.usd_per_hour < 0:
            raise ValueError(f"price: usd_per_hour={self.usd_per_hour} must not be negative.")
        evidence_class(self.source)
        check_date("price", self.date, "price")

    def usd(self, chip_s: float) -> float:
        """US dollars for these busy seconds of one chip."""
        return self.usd_per_hour * chip_s / _HOUR_S

    @property
    def described(self) -> str:
        return f"{self.usd_per_hour:g} USD an hour of a chip ({self.source}; {self.date})"
