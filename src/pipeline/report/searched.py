"""What a search found, for the report of its sweep: search.json as a table, and for MLflow.

search.json: {metrics, directions, best: [number], trials: [{number, label, state, values, chosen}]}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.report.parameters import flat
from pipeline.report.table import Facts, Part, number

NAME = "search.json"


@dataclass(frozen=True)
class Searched:
    """The trials of a search, earlier commands' too."""

    metrics: Sequence[str]
    directions: Sequence[str]
    best: Sequence[int]
    trials: Sequence[Mapping[str, Any]]

    @property
    def found(self) -> Mapping[str, Any] | None:
        """The best trial; with several metrics there is no such thing."""
        return next((one for one in self.trials if [one["number"]] == list(self.best)), None)

    def parts(self) -> list[Part]:
        """What is printed."""
        complete = sum(one["state"] == "complete" for one in self.trials)
        facts = [("searched", f"{', '.join(self.metrics)}; {complete} of {len(self.trials)} trials complete")]
        for one in (trial for trial in self.trials if trial["number"] in self.best):
            chosen = ", ".join(f"{key.lstrip('+')}={value}" for key, value in one["chosen"].items())
            facts.append(("best", f"{', '.join(map(number, one['values']))} (trial {one['label']}): {chosen}"))
        return [Facts(tuple(facts))]

    def numbers(self) -> dict[str, float]:
        """`search/METRIC` of the best trial, and how many there were."""
        own = dict(zip(self.metrics, self.found["values"], strict=True)) if self.found else {}
        return {"search/trials": float(len(self.trials)), **{f"search/{name}": value for name, value in own.items()}}

    def parameters(self) -> dict[str, str]:
        """`search.KEY` of the best trial."""
        chosen = self.found["chosen"] if self.found else {}
        return flat({f"search.{key.lstrip('+')}": value for key, value in chosen.items()})


def read(folder: Path) -> Searched | None:
    """What was searched in a sweep's folder; None where nothing was."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Searched(**found)
    except (OSError, ValueError, TypeError):
        return None
