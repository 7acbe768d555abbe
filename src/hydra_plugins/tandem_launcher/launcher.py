"""Hydra's door to `pipeline.parallel`. Hydra loads this module at every start, and reads annotations as they are:
nothing heavy here, and no annotations as text.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write


class ParallelLauncher(Launcher):
    """Runs the jobs of a sweep on worker processes; options: conf/hydra/launcher."""

    def __init__(self, workers: Mapping[str, Any], retries: int = 2, **_options: Any) -> None:
        self.workers, self.retries = workers, retries  # the other options are what `workers` refers to

    def setup(
        self,
        *,
        hydra_context: HydraContext,
        task_function: TaskFunction,  # noqa: ARG002
        config: DictConfig,
    ) -> None:
        self.hydra_context: HydraContext = hydra_context
        self.config: DictConfig = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises SystemExit for what a user can mend: an exception would be shown as Hydra's own."""
        from pipeline.errors import UserError, print_error

        try:
            return self._launch(job_overrides, initial_job_idx)
        except UserError as problem:
            sys.exit(print_error(problem))

    def _launch(self, job_overrides: Sequence[Sequence[str]], first_number: int) -> list[JobReturn]:
        from pipeline.errors import ConfigError
        from pipeline.parallel import cells
        from pipeline.parallel.launch import SweepLaunch
        from pipeline.parallel.workers import create_workers
        from pipeline.report.sweep import SweepCallback

        if type(self.retries) is not int or self.retries < 0:
            raise ConfigError(f"hydra.launcher.retries is {self.retries!r}; give a number of times, 0 or more.")
        workers = create_workers(OmegaConf.to_container(self.config.hydra.launcher.workers, resolve=True))
        jobs = [self._cell(first_number + index, words) for index, words in enumerate(job_overrides)]
        sweep = SweepLaunch(workers, cells.current_launch(self.hydra_context), self.retries)
        sweep.run([cells.Cell(number, config) for number, config in jobs])
        failed = [status for status in sweep.statuses.values() if status]
        SweepCallback.worker_status = failed[0] if failed else SweepCallback.worker_status
        return [_returned(config, sweep.statuses.get(number, 0)) for number, config in jobs]

    def _cell(self, number: int, overrides: Sequence[str]) -> tuple[int, DictConfig]:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = number, number
        return number, config


def _returned(config: DictConfig, status: int) -> JobReturn:
    folder = Path(str(config.hydra.sweep.dir)).absolute() / str(config.hydra.sweep.subdir)
    with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
        config.hydra.runtime.output_dir = str(folder)
    returned = JobReturn(hydra_cfg=config, status=JobStatus.COMPLETED)
    returned.return_value = status
    return returned
