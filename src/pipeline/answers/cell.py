"""A cell of a question: one configuration, given by the words of its command line, and what it measured.

A cell is served as `python -m pipeline` serves it, from the same store of artifacts, so that a question that was
stopped finds its cells again. No figures are drawn and nothing is logged to MLflow.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import survived_problem

if TYPE_CHECKING:
    from omegaconf import DictConfig


QUIET = ("report=quiet", "tracking.uri=none")


@dataclass(frozen=True)
class CellResult:
    """What the configuration of `words` measured, or the `problem` that kept it from being served."""

    words: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifact: str = ""
    """The folder with the cell's records."""
    policy: str = ""
    lossless: bool = False
    problem: str | None = None

    @property
    def complete(self) -> bool:
        return self.problem is None


@contextmanager
def composed_cell(words: Sequence[str], config_dir: str | None) -> "Iterator[DictConfig]":
    """The configuration of a cell. Raises ConfigError for words that no configuration has."""
    from pipeline import api
    from pipeline.config.compose import apart_from_command
    from pipeline.config.hydra_errors import as_config_errors

    folder = Path(config_dir) if config_dir else None
    with apart_from_command(), as_config_errors(), api.composed(*words, *QUIET, config_dir=folder) as cfg:
        yield cfg


def run_cell(words: Sequence[str], config_dir: str | None = None) -> CellResult:
    """Serves a cell, in this process; what is wrong with it is its problem, be it a fault of the project."""
    try:
        return _served_cell(words, config_dir)
    except Exception as problem:
        return CellResult(tuple(words), problem=survived_problem(problem).partition("\n")[0])


def _served_cell(words: Sequence[str], config_dir: str | None) -> CellResult:
    from pipeline.report.records import Records
    from pipeline.report.summary import summarise
    from pipeline.running import create_job

    with composed_cell(words, config_dir) as cfg:
        job = create_job(cfg)
        plan = job.plan()
        folder, _ = job.run([plan.serve])
    records = Records.read(folder)
    found = summarise(records).metrics()
    return CellResult(tuple(words), found, str(folder), records.meta.policy, bool(records.meta.lossless))
