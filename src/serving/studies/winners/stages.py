"""The stages of the study: the map of winners, and the borders between them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.outcomes.fitted import FittedAcceptance
from serving.policy.policy import Policy
from serving.progress import Progress
from serving.runtimes.simulated import Simulated
from serving.studies.capacity.search import check_seeds
from serving.studies.winners.border_finder import AGREES, COMPARED, DIFFERS, BorderFinder, Window
from serving.studies.winners.contest import Contest, Simulation, States, check_contenders, to_json
from serving.studies.winners.known_states import KnownStates, run_all
from serving.studies.winners.place import Grid, Place
from serving.studies.winners.steady_state import SteadyLoad
from serving.studies.winners.verdict import TIE, cheapest, cheapest_in_time, fastest

CLOUD_SPECULATIVE = "cloud_speculative"


@dataclass(frozen=True)
class WinnerRule:
    """A contender ties with the best within `margin`, or if seeds disagree; a promise is kept if at most `most_late` of
    the answers are slower.
    """

    margin: float = 0.05
    most_late: float = 0.05

    def __post_init__(self) -> None:
        for name in ("margin", "most_late"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"rule.{name} is {getattr(self, name)}; it is a share, 0 to below 1")


def check_map_winners(
    *, setup: Setup, runtime: Simulated, contenders: dict[str, Policy], drafters: dict[str, Architecture] | None = None,
    promised_tokens_per_s: tuple[float, ...] = (), seeds: tuple[int, ...] = (0, 1, 2), **_: object,
) -> None:  # fmt: skip
    """Raises ValueError for contenders that change the text, for a runtime or workload that is not simulated so, and
    for seeds that give no interval.
    """
    check_seeds(seeds)
    check_contenders(contenders, drafters or {})
    if setup.hardware.cloud is None or setup.hardware.cloud.count > 1:
        raise ValueError("the contest has one chip of one cloud; choose a testbed with a cloud, hardware.cloud.count=1")
    if any(speed <= 0 for speed in promised_tokens_per_s):
        raise ValueError(f"promised_tokens_per_s is {list(promised_tokens_per_s)}; give tokens a second, above 0")
    runtime.check(setup)


def map_winners(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    setup: Setup,
    runtime: Simulated,
    contenders: dict[str, Policy],
    devices: dict[str, Fleet],
    grid: Grid,
    drafters: dict[str, Architecture] | None = None,
    promised_tokens_per_s: tuple[float, ...] = (),
    load: SteadyLoad | None = None,
    rule: WinnerRule | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    max_places: int = 600,
) -> None:
    """Simulates each contender at each place of the grid, and finds the winners.

    Writes rows.json (a table for an exhibit), metrics.json (how many places each wins, and how many each tie does) and
    measured.json (each simulation's seconds a token and busy seconds, by seed). Finished simulations survive an
    interruption. Raises ValueError for more than `max_places` places.
    """
    contest = make_contest(setup, runtime, contenders, devices, drafters, load, seeds)
    places = list(grid.places(tuple(devices)))
    if len(places) > max_places:
        raise ValueError(f"the grid has {len(places)} places, more than max_places={max_places}; leave values out")
    simulations = {
        contest.simulation(name, place, speed)
        for place in places
        for name in contenders
        for speed in (0.0, *promised_tokens_per_s)
    }
    states = run_all(contest, sorted(simulations, key=_cheap_first), work, progress)
    rows = dict[str, dict[str, dict[str, Any]]]()
    for place in places:
        group, row = f"{place.device}, {place.num_devices} devices", _row_label(place)
        rows.setdefault(group, {})[row] = _cells(contest, place, states, promised_tokens_per_s, rule or WinnerRule())
    measured = {simulation.name: to_json(found) for simulation, found in states.items()}
    write_json(out, rows=rows, metrics=_counts(rows), measured=measured)


def make_contest(
    setup: Setup, runtime: Simulated, contenders: dict[str, Policy], devices: dict[str, Fleet],
    drafters: dict[str, Architecture] | None, load: SteadyLoad | None, seeds: tuple[int, ...],
) -> Contest:  # fmt: skip
    """Raises ValueError for outcomes that cannot be shifted."""
    if not isinstance(runtime.outcomes, FittedAcceptance):
        raise ValueError(  # noqa: TRY004 - what a person chose
            f"the acceptance of {type(runtime.outcomes).__name__} cannot be shifted; choose runtime/outcomes=shifted"
        )
    return Contest(setup, runtime.outcomes, contenders, devices, drafters or {}, load or SteadyLoad(), seeds)


def _cheap_first(simulation: Simulation) -> tuple[int, str]:
    """Fewest devices first, so that an interrupted run has whole maps of small loads."""
    return simulation.num_devices, simulation.name


def _row_label(place: Place) -> str:
    return f"{place.round_trip_ms:g} ms, {place.acceptance:g}"


def _cells(
    contest: Contest,
    place: Place,
    states: Mapping[Simulation, States],
    promised_tokens_per_s: Sequence[float],
    rule: WinnerRule,
) -> dict[str, Any]:
    """One row: the place, the winners, and seconds a token by seed."""
    free = {name: states[contest.simulation(name, place)] for name in contest.contenders}
    fast, cheap = fastest(free, rule.margin), cheapest(free, rule.margin)
    found: dict[str, Any] = {
        "device": place.device,
        "num_devices": place.num_devices,
        "round_trip_ms": place.round_trip_ms,
        "acceptance": place.acceptance,
        "fastest": fast.text,
        "cheapest": cheap.text,
        "s_per_token": _by_seed(contest, [one.mean_s_per_token for one in free[fast.best[0]]]),
        "busy_s_per_token": _by_seed(contest, [one.busy_s_per_token for one in free[cheap.best[0]]]),
    }
    for speed in promised_tokens_per_s:
        promised = {name: states[contest.simulation(name, place, speed)] for name in contest.contenders}
        found[f"at_{speed:g}_tokens_per_s"] = cheapest_in_time(promised, speed, rule.most_late, rule.margin).text
    return found | dict(_device_against_cloud(contest, place, free))


def _device_against_cloud(
    contest: Contest, place: Place, states: Mapping[str, States]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fastest contender that drafts on the device, relative to the cloud that drafts for itself."""
    own = [name for name in states if contest.simulation(name, place).device is not None]
    if not own or CLOUD_SPECULATIVE not in states:
        return
    best = min(own, key=lambda name: sum(one.mean_s_per_token for one in states[name]))
    pairs = list(zip(states[best], states[CLOUD_SPECULATIVE], strict=True))
    yield "device_of_cloud", _by_seed(contest, [a.mean_s_per_token / b.mean_s_per_token for a, b in pairs])
    yield "device_of_cloud_busy", _by_seed(contest, [a.busy_s_per_token / b.busy_s_per_token for a, b in pairs])


def _by_seed(contest: Contest, values: Sequence[float]) -> dict[str, Any]:
    return {"by_seed": dict(zip(map(str, contest.seeds), values, strict=True))}


def _counts(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """How many places have each winner, or each tie, by the kind of winner."""
    found: dict[str, float] = {}
    for own in rows.values():
        for cells in own.values():
            for kind in ("fastest", "cheapest", *(key for key in cells if key.startswith("at_"))):
                name = f"{kind}/{' and '.join(sorted(cells[kind].split(TIE)))}"
                found[name] = found.get(name, 0.0) + 1
    return found


def write_json(out: Path, **parts: Any) -> None:
    """Writes NAME.json for each part."""
    for name, content in parts.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def check_find_borders(
    *, setup: Setup, runtime: Simulated, contenders: dict[str, Policy], drafters: dict[str, Architecture] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2), resolution: float = 0.1, **_: object,
) -> None:  # fmt: skip
    """As `check_map_winners`; and raises ValueError without the contenders that closed forms compare, and for a
    resolution that is no share.
    """
    check_map_winners(setup=setup, runtime=runtime, contenders=contenders, drafters=drafters, seeds=seeds)
    if missing := [name for name in COMPARED if name not in contenders]:
        raise ValueError(f"contenders: the closed forms compare {', '.join(COMPARED)}; {missing[0]} is missing")
    if not 0 < resolution < 1:
        raise ValueError(f"resolution is {resolution}; it is a share of what is bisected: above 0 and below 1")


def find_borders(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    winners: Path,
    setup: Setup,
    runtime: Simulated,
    contenders: dict[str, Policy],
    devices: dict[str, Fleet],
    drafters: dict[str, Architecture] | None = None,
    load: SteadyLoad | None = None,
    window: Window | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    resolution: float = 0.1,
    max_refined: int = 40,
) -> None:
    """Bisects the borders of the closed forms, and up to `max_refined` of those between neighbours of the map `winners`
    that have different winners, those of fewest devices first.

    Writes rows.json (a table for an exhibit: predicted beside found) and metrics.json (how many agree). Finished
    simulations survive an interruption.
    """
    contest = make_contest(setup, runtime, contenders, devices, drafters, load, seeds)
    finder = BorderFinder(contest, KnownStates(contest, work), window or Window(), resolution)
    tasks = [*finder.tasks(), *finder.refinements(json.loads((winners / "rows.json").read_text()), max_refined)]
    rows = dict[str, dict[str, dict[str, Any]]]()
    for done, (group, row, find) in enumerate(tasks, 1):
        rows.setdefault(group, {})[row] = find()
        progress(done, len(tasks), f"{group}: {row}")
    cells = [row for own in rows.values() for row in own.values()]
    counts = {
        f"borders/{kind}/{text}": float(sum(row.get(kind) == text for row in cells))
        for kind in ("agrees", "refined_agrees")
        for text in (AGREES, DIFFERS)
    }
    write_json(out, rows=rows, metrics=counts)
