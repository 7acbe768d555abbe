"""Finds the borders that closed forms predict, and those between neighbours of the map that have different winners."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, get_args

from serving.hardware.latency import LatencyModel, batch_load
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.winners.borders import Border, Rivals, find_border
from serving.studies.winners.closed_forms import RoundTimes, capacity_factor
from serving.studies.winners.contest import Contest
from serving.studies.winners.known_states import KnownStates
from serving.studies.winners.place import Axis, Place
from serving.studies.winners.steady_state import SteadyState
from serving.studies.winners.verdict import TIE

DECODING, DEVICE_WINDOW, CLOUD_WINDOW = COMPARED = ("cloud_decoding", "device_drafts", "cloud_window")
"""The contenders that closed forms compare; the last two draft the same window."""


@dataclass(frozen=True)
class Window:
    """A comparison with the closed forms: a device and a cloud that draft `length` tokens a round, by `acceptances`.

    Round trips up to `longest_ms` are looked at. A found border agrees with the predicted one within `tolerance_ms` or
    the share `tolerance` of it.
    """

    length: int = 4
    acceptances: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 0.95)
    longest_ms: float = 400.0
    tolerance_ms: float = 5.0
    tolerance: float = 0.1
    num_devices: tuple[int, ...] = (1, 8, 64)


AGREES, DIFFERS = "agrees", "differs"
Task = tuple[str, str, Callable[[], dict[str, Any]]]
"""Group and row of a table, and how its cells are found."""


@dataclass(frozen=True)
class BorderFinder:
    """Finds what closed forms predict, and refines the map."""

    contest: Contest
    known: KnownStates
    window: Window
    resolution: float

    def tasks(self) -> Iterator[Task]:
        """The borders of the closed forms."""
        for device in self.contest.devices:
            for acceptance in self.window.acceptances:
                place = Place(0.0, acceptance, device, 1)
                yield (
                    "window: a device that drafts, a cloud that decodes",
                    f"{device}, acceptance {acceptance:g}",
                    partial(self._against_decoding, place),
                )
        middle = self.window.acceptances[len(self.window.acceptances) // 2]
        for device in self.contest.devices:
            place = Place(0.0, middle, device, 1)
            yield "order: a device and a cloud that draft as far", device, partial(self._against_cloud, place)
        quickest = min(self.contest.devices, key=lambda device: self.round_times(device).device_draft_s)
        for count in self.window.num_devices:
            place = Place(0.0, middle, quickest, count)
            busy, service = (partial(self._capacity, place, per_token) for per_token in (_busy_s, _service_s))
            yield "capacity: the cloud's busy time a token", f"{count} devices", busy
            yield "capacity: the time of a token", f"{count} devices", service

    def refinements(self, rows: Mapping[str, Mapping[str, Mapping[str, Any]]], most: int) -> Iterator[Task]:
        """Borders between neighbours of the map, along the round trip and along the number of devices; a further one
        between the same contenders on one line is told by its bounds.
        """
        cells = [cell for own in rows.values() for cell in own.values()]
        found = [pair for axis in get_args(Axis) for pair in _different_neighbours(cells, axis)]
        rows_of_lines = set[tuple[Axis, str]]()
        for axis, low, high in sorted(found, key=lambda pair: (pair[2]["num_devices"], pair[2]["device"]))[:most]:
            place = Place(*(low[name] for name in ("round_trip_ms", "acceptance", "device", "num_devices")))
            fixed = f"{low['num_devices']} devices" if axis == "round_trip_ms" else f"{low['round_trip_ms']:g} ms"
            names = low["fastest"].split(TIE)[0], high["fastest"].split(TIE)[0]
            row = f"{place.device}, {fixed}, acceptance {place.acceptance:g}: {names[0]}, then {names[1]}"
            if (axis, row) in rows_of_lines:
                row += f", {low[axis]:g} to {high[axis]:g}"
            rows_of_lines.add((axis, row))
            yield (
                "round trip, ms" if axis == "round_trip_ms" else "devices",
                row,
                partial(self._between, place, axis, (low[axis], high[axis]), names),
            )

    def round_times(self, device: str, num_sessions: int = 1) -> RoundTimes:
        """What a round takes, by the chips' latencies, with this many sessions in each of the cloud's passes."""
        setup, window, prompt = self.contest.setup, self.window.length, self._prompt_tokens()
        cached = prompt + setup.workload.max_new_tokens // 2
        cloud, link = setup.hardware.cloud, setup.network
        assert cloud is not None
        target, drafter = setup.pair.cloud.timed_architecture, setup.pair.device.timed_architecture
        large, small, own = (
            fleet.latency(model)
            for fleet, model in ((cloud, target), (cloud, drafter), (self.contest.devices[device], drafter))
        )

        def pass_s(latency: LatencyModel, layers: int, new: int, sessions: int = num_sessions) -> float:
            return latency.seconds(batch_load(layers, [(cached, new)] * sessions, float(new * sessions)))

        return RoundTimes(
            pass_s(own, drafter.layers, 1, 1),
            pass_s(small, drafter.layers, 1),
            pass_s(large, target.layers, window + 1),
            pass_s(large, target.layers, 1),
            2e-3 * link.message_ms,
            own.seconds(batch_load(drafter.layers, [(0, prompt)], 1.0)),
        )

    def _pass_sessions(self, num_devices: int) -> int:
        """The sessions that one verification of the cloud takes together, at most as many as there are devices."""
        scheduler = self.contest.contenders[DEVICE_WINDOW].scheduler
        if not isinstance(scheduler, ContinuousBatch):
            return num_devices
        rows = scheduler.chunk_tokens or num_devices * (self.window.length + 1)
        return max(1, min(num_devices, scheduler.max_num_seqs, rows // (self.window.length + 1)))

    def _prompt_tokens(self) -> int:
        """The mean of prompts."""
        outcomes = self.contest.outcomes
        if outcomes.prompt_lengths:
            return round(outcomes.prompt_lengths.mean)
        return round(fmean(prompt for prompt, _, _ in outcomes.session_lengths))

    def _against_decoding(self, place: Place) -> dict[str, Any]:
        times, answer = self.round_times(place.device), self.contest.setup.workload.max_new_tokens
        plain, refined = (
            times.decoding_border_s(place.acceptance, self.window.length, tokens) for tokens in (None, answer)
        )
        return self._compared(place, DECODING, plain, refined)

    def _against_cloud(self, place: Place) -> dict[str, Any]:
        times, answer = self.round_times(place.device), self.contest.setup.workload.max_new_tokens
        plain, refined = (
            times.colocated_border_s(place.acceptance, self.window.length, tokens) for tokens in (None, answer)
        )
        return self._compared(place, CLOUD_WINDOW, plain, refined)

    def _compared(self, place: Place, other: str, plain_s: float, refined_s: float) -> dict[str, Any]:
        rivals = Rivals(self.contest, self.known, DEVICE_WINDOW, other)
        advantage = rivals.advantage(place, "round_trip_ms")
        found = find_border(advantage, 0.0, self.window.longest_ms, self.resolution / 2)
        return {
            "predicted": 1e3 * plain_s,
            "refined": 1e3 * refined_s,
            **self._found(found),
            "agrees": self._agrees(1e3 * plain_s, found),
            "refined_agrees": self._agrees(1e3 * refined_s, found),
            "unit": "ms",
        }

    def _agrees(self, predicted: float, found: Border) -> str:
        """A prediction below 0 says that the device is faster nowhere."""
        if found.by_seed is None:
            near = predicted > self.window.longest_ms if found.faster_at_low else predicted < self.window.tolerance_ms
            return AGREES if near else DIFFERS
        value = fmean(found.by_seed)
        return (
            AGREES
            if abs(value - predicted) <= max(self.window.tolerance_ms, self.window.tolerance * value)
            else DIFFERS
        )

    def _capacity(self, place: Place, per_token: Callable[[SteadyState], float]) -> dict[str, Any]:
        """Seconds a token where the cloud drafts over those where the device does; the formula by times of one session,
        and of as many as a pass takes together. On a saturated chip a token takes as many busy times as there are
        devices.
        """
        alone, batch = (
            self.round_times(place.device),
            self.round_times(place.device, self._pass_sessions(place.num_devices)),
        )
        predicted = capacity_factor(self.window.length, alone.cloud_draft_s, alone.verify_s)
        in_batches = capacity_factor(self.window.length, batch.cloud_draft_s, batch.verify_s)
        own, other = (self.known(self.contest.simulation(name, place)) for name in (CLOUD_WINDOW, DEVICE_WINDOW))
        ratios = [per_token(a) / per_token(b) for a, b in zip(own, other, strict=True)]
        most = self.window.tolerance * fmean(ratios)
        verdicts = [AGREES if abs(fmean(ratios) - each) <= most else DIFFERS for each in (predicted, in_batches)]
        return {
            "predicted": predicted,
            "refined": in_batches,
            "found": {"by_seed": dict(zip(map(str, self.contest.seeds), ratios, strict=True))},
            "agrees": verdicts[0],
            "refined_agrees": verdicts[1],
            "unit": "times",
        }

    def _between(self, place: Place, axis: Axis, bounds: tuple[float, float], names: tuple[str, str]) -> dict[str, Any]:
        advantage = Rivals(self.contest, self.known, *names).advantage(place, axis)
        found = find_border(advantage, bounds[0], bounds[1], self.resolution, whole=axis == "num_devices")
        return {**self._found(found), "agrees": None, "unit": "ms" if axis == "round_trip_ms" else "devices"}

    def _found(self, border: Border) -> dict[str, Any]:
        if border.by_seed is None:
            return {"found": "none" if not border.faster_at_low else f"above {border.high:g}"}
        by_seed = dict(zip(map(str, self.contest.seeds), border.by_seed, strict=True))
        return {"found": {"by_seed": by_seed}, "bisected": border.text}


def _busy_s(state: SteadyState) -> float:
    return state.busy_s_per_token


def _service_s(state: SteadyState) -> float:
    return state.mean_s_per_token


Neighbours = tuple[Axis, Mapping[str, Any], Mapping[str, Any]]
"""The axis, and the rows below and above a border."""


def _different_neighbours(cells: Sequence[Mapping[str, Any]], axis: Axis) -> Iterator[Neighbours]:
    """Neighbours along the axis whose fastest contenders have none in common."""
    others = [name for name in ("round_trip_ms", "acceptance", "device", "num_devices") if name != axis]
    lines = dict[tuple[Any, ...], list[Mapping[str, Any]]]()
    for cell in cells:
        lines.setdefault(tuple(cell[name] for name in others), []).append(cell)
    for line in lines.values():
        ordered = sorted(line, key=lambda cell: float(cell[axis]))
        for low, high in pairwise(ordered):
            if not set(low["fastest"].split(TIE)) & set(high["fastest"].split(TIE)):
                yield axis, low, high
