"""A policy of two places: the clock predicts whether a token takes less time if the cloud drafts or if devices draft.

The prediction counts one session of each device, and is one of means: sessions of one length that are always there,
independent drafts, target and drafter on one chip, one pass at a time. docs/tandem.md says how near it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from serving.engines.models import ModelPair
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet, fits_memory
from serving.hardware.latency import LatencyModel, batch_load
from serving.hardware.testbed import CLOUD, Testbed
from serving.network.link import Link
from serving.policy.policy import Policy
from serving.workload.workload import Workload

_DRAFTS_NBYTES, _VERDICT_NBYTES = 200, 100
_FIXED_POINT_STEPS = 60


def tokens_per_round(acceptance: float, window: int) -> float:
    """Mean tokens of a round: the right drafts before the first wrong one, and the target's own (Leviathan et al.,
    2023, Eq. 1).
    """
    return float(window + 1) if acceptance == 1 else (1 - acceptance ** (window + 1)) / (1 - acceptance)


@dataclass(frozen=True)
class ExpectedLoad:
    """What requests are expected to be, which no testbed says; the defaults are those of the embedded pair's tasks.

    Raises ValueError for a value out of range.

    Args:
        acceptance: of a draft, where drafts end before an unlikely one.
        prompt_tokens: mean tokens of a prompt.
        answer_tokens: mean tokens of an answer.
    """

    acceptance: float = 0.85
    prompt_tokens: int = 24
    answer_tokens: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance < 1:
            raise ValueError(f"policy.expected.acceptance is {self.acceptance:g}; it is a share, 0 to below 1.")
        for name in ("prompt_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.expected.{name} is {getattr(self, name)}; it must be at least 1.")

    @property
    def cached_tokens(self) -> int:
        """Halfway through an answer."""
        return self.prompt_tokens + self.answer_tokens // 2

    def rounds(self, drafts: int) -> float:
        """Rounds of an answer with this many drafts each."""
        return self.answer_tokens / tokens_per_round(self.acceptance, drafts)


@dataclass(frozen=True, kw_only=True)
class PolicyByCondition(Policy):
    """Two policies: by its own slots the cloud makes the drafts, and by those of `device` devices make them.

    Args:
        device: the policy of devices. It is taken where a token is predicted to take less time with it, where the
            cloud's chip does not hold both models, and on a testbed of tiers. None: there is no other.
    """

    device: Policy | None = None
    expected: ExpectedLoad = field(default_factory=ExpectedLoad)

    def on_testbed(self, pair: ModelPair, hardware: Testbed, network: Link, workload: Workload) -> "PlacedPolicy":
        """The policy of the faster place. Raises ValueError if a chip of the cloud has no latency coefficients for a
        model.
        """
        if self.device is None:
            return self._in_cloud("policy.device is null")
        tier = hardware.tier(CLOUD)
        if tier is None:
            return self._on_devices(f"in front of the tiers {hardware.tier_names}")
        chip, drafter = tier.largest_memory_fleet, pair.device.timed_architecture
        beside = None if self.drafts_apart else drafter
        if not fits_memory(chip, pair.cloud.timed_architecture, 1, workload.context_tokens, beside):
            return self._on_devices(f"{chip.chip.name} does not hold both models")
        if any(_awaits_profile(fleet) for fleet in (chip, *hardware.device_fleets)):
            return self._in_cloud("as far as is known before the chips are profiled")
        sessions = (workload.devices or sum(fleet.count for fleet in hardware.device_fleets)) / len(tier.node_fleets)
        cloud = CloudPrediction(
            chip.latency(pair.cloud.timed_architecture), chip.latency(drafter), sessions, self.expected
        )
        try:
            devices = DevicePredictions.of(hardware.device_fleets, drafter, cloud, network, workload.max_prompt_tokens)
        except ValueError as problem:
            return self._in_cloud(f"{problem}")
        return self._faster(cloud, devices, workload)

    def _faster(self, cloud: "CloudPrediction", devices: "DevicePredictions", workload: Workload) -> "PlacedPolicy":
        assert self.device is not None
        promised_s = min((each.ttft_s for each in workload.slo if each.ttft_s is not None), default=inf)
        if devices.first_token_s > promised_s:
            return self._in_cloud(
                f"behind a prompt of {workload.max_prompt_tokens} tokens the first is predicted after "
                f"{devices.first_token_s:.2g} s if devices draft, and it is promised within {promised_s:g} s"
            )
        device_s = devices.s_per_token(_max_drafts(self.device))
        cloud_s = cloud.s_per_token(_max_drafts(self)) + devices.round_trip_s / self.expected.answer_tokens
        reason = (
            f"a token is predicted to take {device_s * 1e3:.0f} ms if devices draft and {cloud_s * 1e3:.0f} ms if the "
            f"cloud does, with {cloud.sessions:g} sessions on a node"
        )
        return self._on_devices(reason) if device_s < cloud_s else self._in_cloud(reason)

    def _in_cloud(self, reason: str) -> "PlacedPolicy":
        return self._placed(self, "", f"drafts are made in the cloud: {reason}")

    def _on_devices(self, reason: str) -> "PlacedPolicy":
        assert self.device is not None
        return self._placed(self.device, "device", f"drafts are made on devices: {reason}")

    def _placed(self, chosen: Policy, case: str, reason: str) -> "PlacedPolicy":
        slots = _slots(chosen) | {"name": self.name}
        return PlacedPolicy(**slots, options=self, case=case, reason=f"{self.name}: {reason}")


@dataclass(frozen=True, kw_only=True)
class PlacedPolicy(Policy):
    """What a `PolicyByCondition` is on a testbed, and why."""

    options: PolicyByCondition = field(repr=False, compare=False)
    case: str
    """The option that it is: `device`, or empty for the policy's own slots."""
    reason: str = field(repr=False, compare=False)
    """Hosts that decide alike may predict other times; the digest of a deployment is of what is shown."""

    @property
    def settled(self) -> Policy:
        return Policy(**_slots(self))

    def on_testbed(self, pair: ModelPair, hardware: Testbed, network: Link, workload: Workload) -> "PlacedPolicy":
        """Chosen anew; slots that were replaced since the choice are kept."""
        chosen = self.options.device if self.case and self.options.device else self.options
        known = _slots(chosen) | {"name": self.name}
        replaced = {name: slot for name, slot in _slots(self).items() if slot != known[name]}
        return replace(self.options.on_testbed(pair, hardware, network, workload), **replaced)


@dataclass(frozen=True)
class CloudPrediction:
    """Target and drafter on one chip: one forward drafts a token of every session, one pass verifies all drafts and
    computes the prompts of new sessions.
    """

    target: LatencyModel
    drafter: LatencyModel
    sessions: float
    expected: ExpectedLoad

    def s_per_token(self, max_drafts: int) -> float:
        """With drafts of the length up to `max_drafts` that is best."""
        return min(self._s_per_token(drafts) for drafts in range(1, max_drafts + 1))

    def _s_per_token(self, drafts: int) -> float:
        rounds = self.expected.rounds(drafts)
        new = self.sessions / (rounds + 1)
        known = self.sessions - new
        step_s = self.pass_s(self.drafter, known, 1, 0)
        round_s = self.verify_s(known, drafts, new) + self.pass_s(self.drafter, known, 1, new) + (drafts - 1) * step_s
        return (rounds + 1) * round_s / self.expected.answer_tokens

    def verify_s(self, sessions: float, drafts: int, prompts: float) -> float:
        return self.pass_s(self.target, sessions, drafts + 1, prompts)

    def pass_s(self, model: LatencyModel, sessions: float, rows: int, prompts: float) -> float:
        """A pass over `rows` of each session, and over as many prompts; between whole numbers of prompts linear."""
        share = prompts % 1
        return (1 - share) * self._pass_s(model, sessions, rows, int(prompts)) + share * self._pass_s(
            model, sessions, rows, int(prompts) + 1
        )

    def _pass_s(self, model: LatencyModel, sessions: float, rows: int, prompts: int) -> float:
        known = max(0, round(sessions))
        spans = [(self.expected.cached_tokens, rows)] * known + [(0, self.expected.prompt_tokens)] * prompts
        return model.seconds(batch_load(model.layers, spans, known * rows + prompts)) if spans else 0.0


@dataclass(frozen=True)
class DevicePrediction:
    """Devices that draft, and wait for the link, for the pass before theirs to end, and for their own."""

    draft_s: float
    """A step of the drafter on the device."""
    prompt_s: float
    """The drafter's pass over a prompt of the expected length there."""
    round_trip_s: float
    first_token_s: float
    """Until the first token behind the longest prompt: its passes on the device and in the cloud, and a draft."""
    cloud: CloudPrediction

    @classmethod
    def of(
        cls, fleet: Fleet, drafter: Architecture, cloud: CloudPrediction, network: Link, max_prompt_tokens: int
    ) -> "DevicePrediction":
        """The devices of a fleet; `network`: their link, where the fleet has none of its own."""
        model, link = fleet.latency(drafter), fleet.network or network
        round_trip_s = link.mean_transfer_s(_DRAFTS_NBYTES, "up") + link.mean_transfer_s(_VERDICT_NBYTES, "down")
        draft_s, prompt_s = cloud.pass_s(model, 1, 1, 0), cloud.pass_s(model, 0, 1, 1)
        longest_s = sum(
            each.seconds(batch_load(each.layers, [(0, max_prompt_tokens)], 1)) for each in (model, cloud.target)
        )
        return cls(draft_s, prompt_s, round_trip_s, longest_s + draft_s + round_trip_s, cloud)

    def s_per_token(self, max_drafts: int) -> float:
        """With drafts of the length up to `max_drafts` that is best."""
        return min(self._s_per_token(drafts) for drafts in range(1, max_drafts + 1))

    def _s_per_token(self, drafts: int) -> float:
        """A pass holds the sessions that came while the one before ran: found as a fixed point."""
        rounds = self.cloud.expected.rounds(drafts)
        away_s = drafts * self.draft_s + self.round_trip_s + self.prompt_s / rounds
        batch, round_s = 1.0, 0.0
        for _ in range(_FIXED_POINT_STEPS):
            new = batch / rounds
            pass_s = self.cloud.verify_s(batch - new, drafts, new)
            round_s = away_s + 1.5 * pass_s
            batch = (batch + min(self.cloud.sessions, max(1.0, self.cloud.sessions * pass_s / round_s))) / 2
        return rounds * round_s / self.cloud.expected.answer_tokens


@dataclass(frozen=True)
class DevicePredictions:
    """Those of each fleet of devices, with its number of devices."""

    fleets: tuple[tuple[DevicePrediction, int], ...]

    @classmethod
    def of(
        cls,
        fleets: Sequence[Fleet],
        drafter: Architecture,
        cloud: CloudPrediction,
        network: Link,
        max_prompt_tokens: int,
    ) -> "DevicePredictions":
        """Raises ValueError if a device has no latency coefficients for the drafter."""
        made = [DevicePrediction.of(fleet, drafter, cloud, network, max_prompt_tokens) for fleet in fleets]
        return cls(tuple(zip(made, (fleet.count for fleet in fleets), strict=True)))

    @property
    def first_token_s(self) -> float:
        """The slowest fleet's."""
        return max(each.first_token_s for each, _ in self.fleets)

    @property
    def round_trip_s(self) -> float:
        return self._mean([each.round_trip_s for each, _ in self.fleets])

    def s_per_token(self, max_drafts: int) -> float:
        return self._mean([each.s_per_token(max_drafts) for each, _ in self.fleets])

    def _mean(self, values: Sequence[float]) -> float:
        counts = [count for _, count in self.fleets]
        return sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)


def _awaits_profile(fleet: Fleet) -> bool:
    """True while a plan is made, for a chip that a stage will profile."""
    return fleet.timing == "profile" and not isinstance(fleet.chip.profile, Path)


def _slots(policy: Policy) -> dict[str, Any]:
    return {each.name: getattr(policy, each.name) for each in fields(Policy)}


def _max_drafts(policy: Policy) -> int:
    return int(getattr(policy.draft, "k", 1))
