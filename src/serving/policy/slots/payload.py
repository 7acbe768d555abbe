"""Slot `payload`: what a request carries besides the tokens or hidden states that its placement implies."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.hardware.payload_size import HIDDEN_DTYPES, HiddenDtype
from serving.messages import SequenceSlice


class Payload(Protocol):
    @property
    def full_distributions(self) -> bool:
        """True if the draft model returns full distributions, even where verification needs less."""
        ...

    @property
    def hidden_dtype(self) -> HiddenDtype:
        """Number format of hidden states on the link."""
        ...

    def nbytes(self, seq: SequenceSlice) -> int:
        """Bytes of a message for this slice besides token ids and hidden states."""
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
    """Token ids, and as much of the draft distributions as lossless verification needs (Synera, section 4.2).

    That is nothing under greedy decoding, and the tokens that could have been drawn under top-k and top-p sampling.
    """

    full_distributions: ClassVar[bool] = False
    hidden_dtype: ClassVar[HiddenDtype] = "fp16"

    def nbytes(self, seq: SequenceSlice) -> int:
        return _distribution_nbytes(seq)


@dataclass(frozen=True)
class FullDistributionPayload:
    """Token ids, and the full draft distribution of each, greedy or not (Synera without compression)."""

    full_distributions: ClassVar[bool] = True
    hidden_dtype: ClassVar[HiddenDtype] = "fp16"

    def nbytes(self, seq: SequenceSlice) -> int:
        return _distribution_nbytes(seq)


@dataclass(frozen=True)
class HiddenStatePayload:
    """Hidden states only (HAT, U-shape): neither token ids nor distributions leave the device.

    Args:
        hidden_dtype: fp16, bf16 or fp32, or int8 with a scale for each token.
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
    return sum(probs.nbytes for probs in seq.distinct_draft_probs) if seq.draft_probs else 0
