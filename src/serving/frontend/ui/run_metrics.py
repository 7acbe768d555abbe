"""Computes the metrics of a run that the page shows, while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.hardware.fleet import Fleet, total_or_unknown
from serving.metrics import definitions
from serving.metrics.definitions import CLOUD_ORIGINS
from serving.metrics.recorder import SessionRecord


@dataclass(frozen=True)
class RunMeter:
    """Computes the metrics of a run from its record.

    Args:
        device, cloud: the chips that compute, of the cloud those that run the target's head.
        cloud_fleets: the chips of each node of the cloud.
        hardware_paced: True if work lasts as long as on the named chips; otherwise energy and cost are not known.
        remote_cloud: True if the cloud is another process, whose busy time is not known here.
    """

    device: Fleet
    cloud: Fleet
    cloud_fleets: Mapping[str, Fleet]
    hardware_paced: bool
    remote_cloud: bool

    def read(self, record: SessionRecord, now: float) -> dict[str, Any]:
        """Values by the keys of `definitions.PAGE`, with the token counts behind them; None: not known."""
        seen, tokens = record.token_times_s, len(record.tokens)
        written = sum(origin in CLOUD_ORIGINS for origin in record.origins)
        tbt_s = (seen[-1] - seen[0]) / (tokens - 1) if tokens > 1 else None
        return {
            "latency/ttft_s": _rounded(seen[0] - record.arrived_s if seen else None),
            "latency/tbt_s": _rounded(tbt_s),
            "tokens": tokens,
            "cloud_tokens": written,
            "device_tokens": tokens - written,
            "offline_tokens": record.origins.count("offline"),
            "cost/w_generated": written / tokens if tokens else None,
            "resources/uplink_nbytes": record.uplink_nbytes,
            "resources/downlink_nbytes": record.downlink_nbytes,
            "resources/device_energy_j": self._device_energy_j(record, now),
            "resources/cloud_energy_j": self._cloud_energy_j(record),
            "resources/cloud_busy_s": None if self.remote_cloud else _rounded(record.cloud_busy_s),
            "cost/usd_per_million_tokens": self._usd_per_million_tokens(record),
        }

    def _cloud_energy_j(self, record: SessionRecord) -> float | None:
        known = self.hardware_paced and not self.remote_cloud
        return self._sum_over_nodes(record, Fleet.joules) if known else None

    def _sum_over_nodes(self, record: SessionRecord, spent: Callable[[Fleet, float], float | None]) -> float | None:
        """None if it is not known of a node that was busy."""
        return total_or_unknown([spent(self.cloud_fleets[node], busy_s) for node, busy_s in record.node_busy_s.items()])

    def _device_energy_j(self, record: SessionRecord, now: float) -> float | None:
        if not self.hardware_paced:
            return None
        started_s = record.arrived_s if record.started_s is None else record.started_s
        return self.device.joules(record.device_busy_s, max(0.0, now - started_s - record.device_busy_s))

    def _usd_per_million_tokens(self, record: SessionRecord) -> float | None:
        known = self.hardware_paced and not self.remote_cloud
        usd = self._sum_over_nodes(record, Fleet.usd) if known else None
        return None if usd is None or not record.tokens else 1e6 * usd / len(record.tokens)

    @property
    def metrics(self) -> list[dict[str, str]]:
        """The metrics of the page as JSON, in the order of display, with notes on what is not known here."""
        notes = {
            "resources/device_energy_j": self._energy_note,
            "resources/cloud_energy_j": self._energy_note + self._remote_cloud_note,
            "resources/cloud_busy_s": self._wall_time_note + self._remote_cloud_note,
            "cost/usd_per_million_tokens": self._energy_note + self._remote_cloud_note + self._price_note,
        }
        return [
            {"key": key, "label": one.label, "unit": one.unit, "description": one.meaning + notes.get(key, "")}
            for key in definitions.PAGE
            for one in (definitions.metric(key),)
        ]

    @property
    def _energy_note(self) -> str:
        return "" if self.hardware_paced else " Not known at pace=wall, where work takes this machine's time."

    @property
    def _price_note(self) -> str:
        price = self.cloud.chip.price
        return f" The price: {price.described}." if price else " The price of the cloud's chip is not known."

    @property
    def _wall_time_note(self) -> str:
        return "" if self.hardware_paced else " At pace=wall: in this machine's time."

    @property
    def _remote_cloud_note(self) -> str:
        return " Not known here: the cloud is another process." if self.remote_cloud else ""


def _rounded(seconds: float | None) -> float | None:
    """To microseconds."""
    return None if seconds is None else round(seconds, 6)
