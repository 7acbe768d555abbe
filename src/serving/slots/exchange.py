"""Slot `exchange`: what crosses the link beside the rows themselves, whose payload follows from the placement."""

from dataclasses import dataclass
from typing import Protocol

from serving.messages import Rows


class Exchange(Protocol):
    def nbytes(self, rows: Rows) -> int:
        """Bytes that a message needs for these rows beyond token ids and hidden states."""
        ...


@dataclass(frozen=True)
class Nothing:
    """No message leaves the device."""

    def nbytes(self, rows: Rows) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class Tokens:
    """Token ids; under sampling also the drafter's whole distribution per draft (fp16), which lossless verification
    needs.
    """

    def nbytes(self, rows: Rows) -> int:
        return sum(blob.nbytes for blob in rows.odds) if rows.odds else 0
