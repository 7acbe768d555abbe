"""What the answers of a load test take: tokens, seconds and joules of the device, seconds of the cloud's chips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from serving.deployment.topology import Topology
from serving.hardware.fleet import total_or_unknown
from serving.metrics.radio_energy import have_time_lines, radio_energies_j
from serving.metrics.recorder import SessionRecord


@dataclass(frozen=True)
class AnswerSpending:
    """Means over the complete answers to requests of a window. Joules are None where a chip's or radio's power is
    unknown.
    """

    answers: int
    prompt_tokens: float
    tokens: float
    """Of an answer."""
    ttft_s: float
    tokens_per_s: float
    """From the request to the last token."""
    device_j_per_token: float | None
    """The chip's whole power budget while it computes, its idle power while it waits."""
    radio_j_per_token: float | None
    cloud_chip_s_per_token: float
    """Busy seconds of the cloud's chips."""

    @property
    def device_total_j_per_token(self) -> float | None:
        """Chip and radio of the device."""
        if self.device_j_per_token is None or self.radio_j_per_token is None:
            return None
        return self.device_j_per_token + self.radio_j_per_token


def spending_of(
    records: Sequence[SessionRecord], topology: Topology, begin_s: float, end_s: float
) -> AnswerSpending | None:
    """What the complete answers among `records` took whose requests arrived from `begin_s` to `end_s`; None without
    a complete answer.

    `records` are all sessions of the run with their time lines: the requests of a device share its radio.
    """
    counted = [one for one in records if begin_s <= one.arrived_s < end_s and one.ending == "complete"]
    if not counted:
        return None
    tokens = sum(len(one.tokens) for one in counted)
    radio_j = radio_j_by_session(records, topology)
    return AnswerSpending(
        answers=len(counted),
        prompt_tokens=fmean(one.prompt_tokens for one in counted),
        tokens=tokens / len(counted),
        ttft_s=fmean(one.token_times_s[0] - one.arrived_s for one in counted),
        tokens_per_s=fmean(len(one.tokens) / (one.token_times_s[-1] - one.arrived_s) for one in counted),
        device_j_per_token=over_tokens([device_j(one, topology) for one in counted], tokens),
        radio_j_per_token=over_tokens([radio_j[one.session] for one in counted], tokens),
        cloud_chip_s_per_token=sum(_cloud_chip_s(one, topology) for one in counted) / tokens,
    )


def device_j(record: SessionRecord, topology: Topology, waited_longer_s: float = 0.0) -> float | None:
    """Joules of the chip of a complete answer's device: the power budget while it computes, idle power while it waits.

    None where a power is unknown, or the device's mode changes during a run.
    """
    fleet = topology.device_fleets[record.device]
    began_s = record.arrived_s if record.started_s is None else record.started_s
    assert record.ended_s is not None
    idle_s = max(0.0, record.ended_s - began_s + waited_longer_s - record.device_busy_s)
    return None if fleet.schedule else fleet.joules(record.device_busy_s, idle_s)


def radio_j_by_session(records: Sequence[SessionRecord], topology: Topology) -> Mapping[str, float | None]:
    """Joules of the radio for each session; `records` are all sessions of the run."""
    by_device: dict[str, list[SessionRecord]] = {}
    for record in records:
        by_device.setdefault(record.device, []).append(record)
    found: dict[str, float | None] = {}
    with_time_lines = have_time_lines(records)
    for device, own in by_device.items():
        found |= radio_energies_j(own, topology.device_link(device), with_time_lines)
    return found


def over_tokens(joules: Sequence[float | None], tokens: int) -> float | None:
    """Their sum over the tokens; None if one is not known."""
    total = total_or_unknown(joules)
    return None if total is None else total / tokens


def _cloud_chip_s(record: SessionRecord, topology: Topology) -> float:
    return sum(topology.cloud_fleets[node].tensor_parallel * busy_s for node, busy_s in record.node_busy_s.items())
