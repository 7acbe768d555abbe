"""The source of a hardware or network figure, as data beside the figure."""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

EvidenceClass: TypeAlias = Literal["datasheet", "derived", "measured", "unverified"]

EVIDENCE_CLASSES: tuple[EvidenceClass, ...] = ("datasheet", "derived", "measured", "unverified")
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


def evidence_class(source: str) -> EvidenceClass:
    """The evidence class that a source begins with, as in `derived: SMs x GHz x 2.048`.

    Raises ValueError if the text names no class, or no reason after it.
    """
    kind, _, reason = source.partition(":")
    for known in EVIDENCE_CLASSES:
        if kind.strip() == known and reason.strip():
            return known
    raise ValueError(
        f"source {source!r} does not say what its evidence is. Begin it with one of {', '.join(EVIDENCE_CLASSES)}, "
        "a colon and the reason, as in 'datasheet: NVIDIA A100, 2021'."
    )


def check_sources(owner: str, sources: Mapping[str, str], allowed: frozenset[str]) -> None:
    """Raises ValueError for a source without a class, and for one of a figure that `owner` does not have."""
    for name, source in sources.items():
        if name not in allowed:
            has = ", ".join(sorted(allowed))
            raise ValueError(f"{owner}: sources speaks of {name!r}, which it does not have. It has: {has}.")
        try:
            evidence_class(source)
        except ValueError as error:
            raise ValueError(f"{owner}, {name}: {error}") from None


def check_date(owner: str, date: str, of: str) -> None:
    """Raises ValueError for a date of the figure `of` that is not YYYY-MM or YYYY-MM-DD."""
    if not _DATE.fullmatch(date):
        raise ValueError(f"{owner}: date={date!r} must be the day or month of the {of}, as in '2026-11-22'.")
