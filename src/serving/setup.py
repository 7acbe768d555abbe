"""What a run serves, on what, how: checked as a whole before any work."""

from dataclasses import dataclass, field

from serving.decoding import Decoding
from serving.network import Link
from serving.pair import Pair
from serving.policy import Policy
from serving.scores import KNOWN
from serving.testbed import Testbed, check_fits
from serving.workload.workload import Workload

TIERS = ("here", "cloud")
"""What a hop may name: the device itself, and the testbed's cloud."""


@dataclass(frozen=True)
class Setup:
    """Raises ValueError when a model does not fit into the memory of the chip that is to run it, a request not into the
    cloud's cache, or when the policy names a tier that the testbed does not have."""

    pair: Pair
    hardware: Testbed
    network: Link
    workload: Workload
    policy: Policy
    decoding: Decoding = field(default_factory=Decoding)
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_tiers()
        self._check_probes()
        self._check_timing()
        tokens = self.workload.max_prompt_tokens + self.workload.max_new_tokens
        self._check_cache(tokens)
        if self.policy.draft.source == "model":
            for fleet in self.hardware.device_fleets:
                check_fits(fleet, self.pair.device.timing, 1, tokens)
        if self.placed:
            check_fits(self.hardware.cloud, self.pair.cloud.timing, 1, tokens)

    def _check_timing(self) -> None:
        """Can every chip be timed? A profile that is still to be made is not asked."""
        if self.policy.draft.source == "model":
            for fleet in self.hardware.device_fleets:
                if fleet.timing != "profile":
                    fleet.latency(self.pair.device.timing)
        if self.placed and self.hardware.cloud.timing != "profile":
            self.hardware.cloud.latency(self.pair.cloud.timing)

    def _check_tiers(self) -> None:
        for hop in self.policy.placement.route(self.pair.cloud.timing.layers):
            if hop.node not in TIERS:
                known = ", ".join(TIERS)
                raise ValueError(f"policy.placement: there is no tier {hop.node!r} in the testbed; there are {known}")

    def _check_probes(self) -> None:
        known = (*KNOWN, *self.policy.scorers)
        for name in self.policy.probes:
            if name not in known:
                raise ValueError(f"policy: nobody computes a score {name!r}; there are {', '.join(known)}")

    def _check_cache(self, tokens: int) -> None:
        cache = self.policy.kv_cache
        capacity, taken = cache.capacity_tokens, cache.taken(tokens)
        if self.placed and capacity is not None and capacity < taken:
            raise ValueError(
                f"policy.kv_cache.capacity_tokens is {capacity:.0f}, and one request may need {taken} "
                f"(workload.max_prompt_tokens + max_new_tokens, in blocks of {cache.block_tokens}); allow more, or "
                "shorter requests"
            )

    @property
    def placed(self) -> bool:
        """Does the policy place the large model anywhere?"""
        return bool(self.policy.placement.route(self.pair.cloud.timing.layers))

    @property
    def devices(self) -> int:
        """How many devices send requests."""
        return self.workload.devices or sum(fleet.count for fleet in self.hardware.device_fleets)

    @property
    def cloud_cache_tokens(self) -> float:
        """Cached tokens that one cloud node's memory holds beside the weights of the timed architecture."""
        fleet, architecture = self.hardware.cloud, self.pair.cloud.timing
        if fleet.memory_nbytes is None:
            return float("inf")
        rest = fleet.memory_nbytes - architecture.weights_nbytes(fleet.precision)
        return max(0.0, rest // architecture.kv_nbytes_per_token(fleet.precision))
