"""The decorator of the vocabulary: immutable while it is being tested, cheap to make in a run.

A frozen dataclass sets each field through `object.__setattr__`, which costs three to four times what a plain one does,
and a simulated run makes some twenty messages a round. So nobody may write to a message, the type checker says so
everywhere, the tests run with it enforced (`TANDEM_FROZEN=1`), and a run trusts them. Equality and hash are the same.
"""

import os
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")

FROZEN = os.environ.get("TANDEM_FROZEN", "0") == "1"


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """A slotted dataclass, by value; its fields are never written again."""
    if FROZEN:
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(slots=True, unsafe_hash=True)(cls)
