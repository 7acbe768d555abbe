"""Simulations that were run, kept in a folder, so that an interrupted study goes on where it was."""

import json
from collections.abc import Sequence
from pathlib import Path

from serving.progress import Progress
from serving.studies.winners.contest import Contest, Simulation, States, from_json, to_json


def run_all(
    contest: Contest, simulations: Sequence[Simulation], work: Path, progress: Progress
) -> dict[Simulation, States]:
    """The states of each simulation; `work` keeps those of an interrupted run."""
    known = KnownStates(contest, work)
    for done, simulation in enumerate(simulations, 1):
        known(simulation)
        progress(done, len(simulations), simulation.name)
    return known.states


class KnownStates:
    """Runs a simulation that is not known yet, and keeps it in a folder."""

    def __init__(self, contest: Contest, folder: Path) -> None:
        self._contest, self._folder = contest, folder
        self.states: dict[Simulation, States] = {}

    def __call__(self, simulation: Simulation) -> States:
        if simulation not in self.states:
            self.states[simulation] = self._read(simulation) or self._run(simulation)
        return self.states[simulation]

    def _read(self, simulation: Simulation) -> States:
        path = self._path(simulation)
        return from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ()

    def _run(self, simulation: Simulation) -> States:
        found, path = self._contest.run(simulation), self._path(simulation)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(to_json(found)), encoding="utf-8")
        part.replace(path)
        return found

    def _path(self, simulation: Simulation) -> Path:
        return self._folder / f"{simulation.name}.json"
