"""Slot `prefill`: when the prompt travels to the cloud, and in which parts."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal, Protocol

from serving.core.session import Session

PrefillTiming = Literal["ahead", "first", "lazy"]


class Prefill(Protocol):
    @property
    def when(self) -> PrefillTiming:
        """ahead: beside the first drafts; first: before them, for the target's first token; lazy: with the first
        question.
        """
        ...

    @property
    def monitors_link(self) -> bool:
        """Does it need to know how link and cloud fare?"""
        ...

    def max_chunk_tokens(self, session: Session) -> int:
        """Rows in one message at most."""
        ...


@dataclass(frozen=True)
class WholePrefill:
    """The prompt travels in one message; how the cloud runs it is its scheduler's choice."""

    when: PrefillTiming = "lazy"
    monitors_link: ClassVar[bool] = False

    def max_chunk_tokens(self, session: Session) -> int:
        return session.prompt_len + session.request.max_new_tokens


@dataclass(frozen=True)
class ChunkedPrefill:
    """The prompt travels in parts of `chunk_tokens`, so that the cloud computes while the rest is on the way."""

    chunk_tokens: int
    when: PrefillTiming = "ahead"
    monitors_link: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise ValueError(f"policy.prefill.chunk_tokens is {self.chunk_tokens}; a part holds at least 1 token")

    def max_chunk_tokens(self, session: Session) -> int:  # noqa: ARG002
        return self.chunk_tokens


@dataclass(frozen=True)
class OverlappedPrefill:
    """Parts of such a size that one is on its way while the cloud waits for its turn and computes the one before (HAT,
    Eq. 3).

    X A / beta = (g(mu) + g(mu + X)) / P with the straight line g that the monitor fits has one root or none. None: the
    cloud takes longer for a row than the link, however many there are, and the prompt travels whole. Before the first
    answer nothing is known of either, and parts have `initial_chunk_tokens` rows.

    The equation leaves the device's own first layers out, which take a weak chip longer for a small part than the link
    takes to send it; with `include_device_time` a part is at least as large as lets the link keep up with them.

    Args:
        first: rows of a part while link and cloud are unknown.
        least: the smallest part; so many rows take a chip hardly longer than a few (Fig. 1c), and fewer wait oftener.
    """

    initial_chunk_tokens: int = 64
    min_chunk_tokens: int = 64
    include_device_time: bool = True
    when: PrefillTiming = "first"
    monitors_link: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("initial_chunk_tokens", "min_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.prefill.{name} is {getattr(self, name)}; a part holds at least 1 token")

    def max_chunk_tokens(self, session: Session) -> int:
        known = session.monitor.path_stats
        if known is None or not known.uplink_mbps:
            return self.initial_chunk_tokens
        row_s = 8e-6 * session.monitor.hidden_nbytes / known.uplink_mbps
        root = overlapped_chunk_tokens(row_s, known.base_s, known.per_token_s, known.mean_batch_tokens, known.num_nodes)
        if root is not None and self.include_device_time:
            slope, hop = row_s - session.monitor.local_hop_time.per_token_s, session.monitor.local_hop_time
            root = max(root, hop.base_s / slope) if slope > 0 else None
        return (
            session.prompt_len + session.request.max_new_tokens
            if root is None
            else max(self.min_chunk_tokens, ceil(root))
        )


def overlapped_chunk_tokens(
    upload_s_per_token: float, base_s: float, per_token_s: float, batch_tokens: float, num_nodes: int
) -> float | None:
    """X of Eq. 3: rows whose upload takes as long as a batch of mu rows and then one of mu + X take one of `num_nodes`
    equal nodes; None where there is no such X.
    """
    slope = upload_s_per_token - per_token_s / num_nodes
    return 2 * (base_s + per_token_s * batch_tokens) / num_nodes / slope if slope > 0 else None
