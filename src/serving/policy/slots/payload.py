"""Slot `exchange`: what crosses the link beside the rows themselves, whose payload follows from the placement."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.hardware.payload_size import HIDDEN_DTYPES, HiddenDtype
from serving.messages import SequenceSlice


class Payload(Protocol):
    @property
    def full_distributions(self) -> bool:
        """Does the drafter make the distributions of its drafts in full, whatever verification needs?"""
        ...

    @property
    def hidden_dtype(self) -> HiddenDtype:
        """In which numbers hidden states cross, where a placement sends any."""
        ...

    def nbytes(self, seq: SequenceSlice) -> int:
        """Bytes that a message needs for these rows beyond token ids and hidden states."""
        ...


@dataclass(frozen=True)
class NoPayload:
    """No message leaves the device."""

    full_distributions: ClassVar[bool] = False
    hidden_dtype: ClassVar[HiddenDtype] = "fp16"

    def nbytes(self, seq: SequenceSlice) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class TokenPayload:
    """Token ids, and of the drafter's distributions what lossless verification needs (Synera, section 4.2): under
    greedy decoding nothing, under top-k and top-p sampling the tokens that could have been drawn.
    """

    full_distributions: ClassVar[bool] = False
    hidden_dtype: ClassVar[HiddenDtype] = "fp16"

    def nbytes(self, seq: SequenceSlice) -> int:
        return _distribution_nbytes(seq)


@dataclass(frozen=True)
class FullDistributionPayload:
    """Token ids and the drafter's whole distribution for each, greedy or not (Synera without compression)."""

    full_distributions: ClassVar[bool] = True
    hidden_dtype: ClassVar[HiddenDtype] = "fp16"

    def nbytes(self, seq: SequenceSlice) -> int:
        return _distribution_nbytes(seq)


@dataclass(frozen=True)
class HiddenStatePayload:
    """Hidden states alone (HAT, U-shape): neither token ids nor distributions leave the device.

    Args:
        number: fp16, bf16 or fp32, or int8 with a scale for each row.
    """

    hidden_dtype: HiddenDtype = "fp16"
    full_distributions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.hidden_dtype not in HIDDEN_DTYPES:
            raise ValueError(
                f"policy.payload.hidden_dtype is {self.hidden_dtype!r}; choose among {', '.join(HIDDEN_DTYPES)}"
            )

    def nbytes(self, seq: SequenceSlice) -> int:  # noqa: ARG002
        return 0


def _distribution_nbytes(seq: SequenceSlice) -> int:
    return sum(blob.nbytes for blob in seq.draft_probs) if seq.draft_probs else 0
