"""Cloud serving cost as Synera estimates it: c = 1/Pf x T x W (Synera, section 6.1).

Pf is the packing factor of the cloud's model, T the mean time between tokens, W "the average percentage of tokens
generated". The paper does not say which tokens W counts, so both readings are computed; each is 1 where the cloud
writes everything by itself.

    W verified   target tokens computed per token of the text: drafts judged + tokens that the cloud wrote;
                 above 1 where many judged drafts are rejected
    W written    share of the text that the cloud wrote: corrections, bonus tokens, and tokens without a draft
"""

from collections.abc import Mapping
from dataclasses import dataclass

CLOUD_WROTE = ("corrected", "bonus", "cloud")


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimate under both readings of W, in seconds of a whole Llama-2-70B's worth of GPUs per token.

    None where the packing factor is not known, or no request had a gap between tokens.
    """

    w_verified: float
    w_written: float
    verified_s: float | None
    written_s: float | None


def estimate(origins: Mapping[str, int], judged: int, tbt_s: float | None, packing_factor: float | None) -> Cost:
    """From the tokens of the text by origin, drafts judged by the cloud, mean TBT and the packing factor."""
    written = sum(origins[origin] for origin in CLOUD_WROTE)
    tokens = max(1, sum(origins.values()))
    w_verified, w_written = (judged + written) / tokens, written / tokens
    known = tbt_s is not None and packing_factor
    scale_s = tbt_s / packing_factor if tbt_s is not None and packing_factor else 0.0
    return Cost(w_verified, w_written, scale_s * w_verified if known else None, scale_s * w_written if known else None)
