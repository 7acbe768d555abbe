"""Slot `prefill`: when the prompt is sent to the cloud, and in which chunks."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal, Protocol

from serving.core.session import Session

PrefillTiming = Literal["ahead", "first", "lazy"]


class Prefill(Protocol):
    @property
    def when(self) -> PrefillTiming:
        """ahead: while the first draft is made. first: before it, for the target's first token. lazy: with the first
        draft.
        """
        ...

    @property
    def monitors_link(self) -> bool:
        """True if it needs measurements of the link and the cloud."""
        ...

    def max_chunk_tokens(self, session: Session) -> int:
        """The most tokens in one message."""
        ...


@dataclass(frozen=True)
class WholePrefill:
    """The prompt is sent in one message. The cloud's scheduler may still compute it in chunks."""

    when: PrefillTiming = "lazy"
    monitors_link: ClassVar[bool] = False

    def max_chunk_tokens(self, session: Session) -> int:
        return session.prompt_len + session.request.max_new_tokens


@dataclass(frozen=True)
class ChunkedPrefill:
    """The prompt is sent in chunks of `chunk_tokens`, so that the cloud computes while the rest is on the link."""

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
    """Chunks of such a size that the upload of one overlaps the cloud's computation of the previous one (HAT, Eq. 3).

    X A / beta = (g(mu) + g(mu + X)) / P, with the line g that the monitor fits, has one root or none. Without a root
    the cloud takes longer for a token than the link, whatever the chunk size, and the prompt is sent whole.

    Args:
        initial_chunk_tokens: chunk size until link and cloud are measured.
        min_chunk_tokens: the smallest chunk; a chip takes hardly longer for so many tokens than for a few (Fig. 1c).
        include_device_time: True: a chunk is also large enough that the device's own first layers, which Eq. 3 leaves
            out, keep up with the link.
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
    """X of Eq. 3: the tokens whose upload takes as long as a batch of mu tokens and one of mu + X tokens on one of
    `num_nodes` equal nodes; None if there is no such X.
    """
    slope = upload_s_per_token - per_token_s / num_nodes
    return 2 * (base_s + per_token_s * batch_tokens) / num_nodes / slope if slope > 0 else None
