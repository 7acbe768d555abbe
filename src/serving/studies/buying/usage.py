"""How much the users of a service use it, and what that takes: chips, calls, energy, battery."""

from dataclasses import dataclass
from math import ceil, isfinite

DAY_S = 86_400.0
HOUR_S = 3_600.0
DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = 24 * DAYS_PER_MONTH
KWH_J = 3.6e6


@dataclass(frozen=True)
class Usage:
    """One user's use of the service.

    tokens_per_day  of answers
    active_share    of the users, those who wait for an answer at once in the busiest minutes
    """

    tokens_per_day: float
    active_share: float

    def __post_init__(self) -> None:
        if not (isfinite(self.tokens_per_day) and self.tokens_per_day > 0):
            raise ValueError(f"buy.usage.tokens_per_day is {self.tokens_per_day}; it must be above 0")
        if not 0 < self.active_share <= 1:
            raise ValueError(f"buy.usage.active_share is {self.active_share}; it is a share of the users: above 0 to 1")

    def contradiction(self, tokens_per_s: float) -> str:
        """Why users whose answers are that fast wait longer for them than `active_share` allows; empty if they do not.

        They wait for a mean share of the day, and `active_share` is that of the busiest minutes.
        """
        waiting = self.tokens_per_day / tokens_per_s / DAY_S
        if waiting <= self.active_share:
            return ""
        return (
            f"{self.tokens_per_day:g} tokens a day at {tokens_per_s:.3g} tokens/s keep a user waiting {waiting:.2g} of "
            f"the day, and active_share, of the busiest minutes, is only {self.active_share:g}; set it higher, or "
            "tokens_per_day lower (buy.usage)"
        )

    def clouds(self, users: int, capacity: float) -> int:
        """Clouds for so many users, each of which carries `capacity` devices at once; at least one."""
        return max(1, ceil(users * self.active_share / capacity - 1e-9))

    def tokens_per_month(self, users: int) -> float:
        return users * self.tokens_per_day * DAYS_PER_MONTH

    def device_j_per_day(self, j_per_token: float) -> float:
        """Joules of one user's device."""
        return j_per_token * self.tokens_per_day


def busy_share(usage: Usage, users: int, chip_s_per_token: float, chips: int) -> float:
    """The mean share of the day in which chips compute. Batches of quiet hours are smaller, so it is a lower bound."""
    return users * usage.tokens_per_day * chip_s_per_token / (chips * DAY_S)
