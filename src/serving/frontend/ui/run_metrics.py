"""The metrics of a run that the page shows, each with unit and description."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from serving.hardware.fleet import Fleet
from serving.hardware.replica_packing import PackingEstimate
from serving.messages import Origin
from serving.metrics.recorder import SessionRecord

CLOUD_ORIGINS: frozenset[Origin] = frozenset(("cloud", "corrected", "bonus"))
"""Origins of tokens that the large model wrote; the device wrote the others, verified or not."""


@dataclass(frozen=True)
class UiMetric:
    """One figure. `key` is its name in the `counters` event."""

    key: str
    label: str
    unit: str
    description: str


UI_METRICS = (
    UiMetric("ttft_ms", "TTFT", "ms", "Time to first token, from when the device got the prompt."),
    UiMetric(
        "tbt_ms",
        "TBT",
        "ms",
        "Mean time between tokens since the first; tokens that arrive together count 0 between them.",
    ),
    UiMetric(
        "cloud_share",
        "by the cloud",
        "%",
        "Share of the tokens so far that the cloud's model wrote: routed tokens, corrections, bonus tokens.",
    ),
    UiMetric("tokens", "tokens", "", "Tokens so far, the end token included: the cloud's and the device's own."),
    UiMetric(
        "uplink_nbytes",
        "up",
        "B",
        "Bytes from the device to the cloud: payload and 16 bytes of header a message, as the policy counts them.",
    ),
    UiMetric("downlink_nbytes", "down", "B", "Bytes from the cloud to the device, counted in the same way."),
    UiMetric(
        "device_energy_j",
        "device energy",
        "J",
        "The chip's whole power budget while it computes and its idle power while it waits; no radio.",
    ),
    UiMetric(
        "cloud_energy_j",
        "cloud energy",
        "J",
        "The power budget of the cloud's chip for the time that it computed for this run; idle time does not count.",
    ),
    UiMetric(
        "cloud_busy_ms",
        "cloud busy",
        "ms",
        "How long the cloud's chip computed for this run: its share, by tokens, of each batch that it was in.",
    ),
    UiMetric(
        "cloud_cost_ms",
        "cloud cost",
        "ms",
        "c = T W / Pf a token (Synera, section 6.1): T is TBT, W the share that the cloud wrote, Pf the packing factor "
        "of its model; in time of all the GPUs that one Llama-2-70B takes.",
    ),
)


@dataclass(frozen=True)
class RunMeter:
    """Computes the metrics of a run from its record.

    Args:
        device, cloud: the chips that compute.
        packing_factor: Pf of the cloud's model; None: not known.
        hardware_paced: True if work lasts as long as on the named chips; otherwise energy is not known.
        remote_cloud: True if the cloud is another process, whose busy time is not known here.
    """

    device: Fleet
    cloud: Fleet
    packing_factor: PackingEstimate | None
    hardware_paced: bool
    remote_cloud: bool

    def read(self, record: SessionRecord, now: float) -> dict[str, Any]:
        """Values by `UiMetric.key`, with the token counts behind them; None: not known."""
        seen, tokens = record.token_times_s, len(record.tokens)
        written = sum(origin in CLOUD_ORIGINS for origin in record.origins)
        tbt_s = (seen[-1] - seen[0]) / (tokens - 1) if tokens > 1 else None
        return {
            "ttft_ms": _ms(seen[0] - record.arrived_s if seen else None),
            "tbt_ms": _ms(tbt_s),
            "tokens": tokens,
            "cloud_tokens": written,
            "device_tokens": tokens - written,
            "offline_tokens": record.origins.count("offline"),
            "cloud_share": written / tokens if tokens else None,
            "uplink_nbytes": record.uplink_nbytes,
            "downlink_nbytes": record.downlink_nbytes,
            "device_energy_j": self._device_energy_j(record, now),
            "cloud_energy_j": self._cloud_energy_j(record),
            "cloud_busy_ms": None if self.remote_cloud else _ms(record.cloud_busy_s),
            "cloud_cost_ms": _ms(self._cost_s(tbt_s, written / tokens if tokens else 0.0)),
        }

    def _cloud_energy_j(self, record: SessionRecord) -> float | None:
        known = self.hardware_paced and not self.remote_cloud
        return self.cloud.joules(record.cloud_busy_s) if known else None

    def _device_energy_j(self, record: SessionRecord, now: float) -> float | None:
        if not self.hardware_paced:
            return None
        started_s = record.arrived_s if record.started_s is None else record.started_s
        return self.device.joules(record.device_busy_s, max(0.0, now - started_s - record.device_busy_s))

    def _cost_s(self, tbt_s: float | None, share: float) -> float | None:
        return tbt_s * share / self.packing_factor.value if tbt_s is not None and self.packing_factor else None

    @property
    def metrics(self) -> list[dict[str, str]]:
        """UI_METRICS as JSON, in the order of display, with notes on what is not known here."""
        notes = {
            "device_energy_j": self._energy_note,
            "cloud_energy_j": self._energy_note + self._remote_cloud_note,
            "cloud_busy_ms": self._wall_time_note + self._remote_cloud_note,
            "cloud_cost_ms": self._packing_note + self._wall_time_note,
        }
        return [asdict(replace(each, description=each.description + notes.get(each.key, ""))) for each in UI_METRICS]

    @property
    def _energy_note(self) -> str:
        return "" if self.hardware_paced else " Not known at pace=wall, where work takes this machine's time."

    @property
    def _wall_time_note(self) -> str:
        return "" if self.hardware_paced else " At pace=wall: in this machine's time."

    @property
    def _remote_cloud_note(self) -> str:
        return " Not known here: the cloud is another process." if self.remote_cloud else ""

    @property
    def _packing_note(self) -> str:
        if not self.packing_factor:
            return " Pf of this model is not known."
        return f" Pf is {self.packing_factor.value:g} ({self.packing_factor.source})."


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
