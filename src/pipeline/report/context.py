"""What a report knows of its job besides the records: how it was asked for, what it was built from, where it ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.report.mlflow_store import Tracking


@dataclass(frozen=True)
class StageRun:
    """One stage of the job: its artifact, built in `seconds`, now or (`cached`) earlier, from `inputs` (name: key)."""

    name: str
    key: str
    kind: str
    path: Path
    seconds: float
    cached: bool
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobContext:
    """One job. `folder` is Hydra's folder of the job, `sweep` that of the multirun (None: a job of its own), `config`
    the resolved configuration as plain data, `choices` what Hydra chose in each group.
    """

    folder: Path
    tracking: Tracking
    config: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    stages: tuple[StageRun, ...] = ()
    digest: str = ""
    revision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str | int | float] = field(default_factory=dict)
    number: int | None = None
    sweep: Path | None = None

    @property
    def policy(self) -> str:
        """The policy's name."""
        return str(self.config.get("policy", {}).get("name", "job"))

    def find(self, place: str) -> Any:
        """The value at a dotted place of the configuration, or None."""
        node: Any = self.config
        for key in place.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        return node
