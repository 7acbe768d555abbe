"""Hydra's door to `pipeline.parallel`. Hydra loads this module at every start, and reads annotations as they are:
nothing heavy here, and no annotations as text.
"""

import logging
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

log = logging.getLogger(__name__)


class _SweepLauncher(Launcher):
    """Composes the jobs of a sweep, and runs them as `_launch` does."""

    def setup(
        self,
        *,
        hydra_context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
    ) -> None:
        self.hydra_context: HydraContext = hydra_context
        self.task_function: TaskFunction = task_function
        self.config: DictConfig = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises SystemExit for what a user can mend: an exception would be shown as Hydra's own."""
        from pipeline.errors import UserError, print_error
        from pipeline.parallel.cells import Cell

        numbered = enumerate(job_overrides, initial_job_idx)
        try:
            return self._launch([Cell(number, self._composed(number, words)) for number, words in numbered])
        except UserError as problem:
            sys.exit(print_error(problem))

    @abstractmethod
    def _launch(self, jobs: Sequence[Any]) -> list[JobReturn]:
        """Runs the jobs, each a `pipeline.parallel.cells.Cell`. Raises UserError."""

    def _composed(self, number: int, overrides: Sequence[str]) -> DictConfig:
        loader = self.hydra_context.config_loader
        config = loader.load_sweep_config(self.config, list(overrides)).copy()  # equal jobs are composed once
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = number, number
        return config


class SerialLauncher(_SweepLauncher):
    """Runs the jobs of a sweep one after the other in this process, as Hydra's own launcher does, but those that an
    earlier command completed.
    """

    def _launch(self, jobs: Sequence[Any]) -> list[JobReturn]:
        from pipeline.parallel.launch import keep_results, plan_cells

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        say = partial(print, flush=True)
        kept = keep_results(jobs, plan_cells(jobs, say), say) if len(jobs) > 1 else ()
        log.info("Launching %d jobs locally", len(jobs) - len(kept))
        return [_returned(job.config, 0) if job.number in kept else self._run(job.number, job.config) for job in jobs]

    def _run(self, number: int, config: DictConfig) -> JobReturn:
        log.info("\t#%d : %s", number, " ".join(filter_overrides(config.hydra.overrides.task)))
        ended = run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        return ended


class ParallelLauncher(_SweepLauncher):
    """Runs the jobs of a sweep on worker processes; options: conf/hydra/launcher."""

    def __init__(self, workers: Mapping[str, Any], retries: int = 2, **_options: Any) -> None:
        self.workers, self.retries = workers, retries  # the other options are what `workers` refers to

    def _launch(self, jobs: Sequence[Any]) -> list[JobReturn]:
        from pipeline.errors import ConfigError
        from pipeline.parallel import cells
        from pipeline.parallel.launch import SweepLaunch
        from pipeline.parallel.workers import create_workers
        from pipeline.report.sweep import SweepCallback

        if type(self.retries) is not int or self.retries < 0:
            raise ConfigError(f"hydra.launcher.retries is {self.retries!r}; give a number of times, 0 or more.")
        workers = create_workers(OmegaConf.to_container(self.config.hydra.launcher.workers, resolve=True))
        sweep = SweepLaunch(workers, cells.current_launch(self.hydra_context), self.retries)
        sweep.run(jobs)
        failed = [status for status in sweep.statuses.values() if status]
        SweepCallback.worker_status = failed[0] if failed else SweepCallback.worker_status
        return [_returned(job.config, sweep.statuses.get(job.number, 0)) for job in jobs]


def _returned(config: DictConfig, status: int) -> JobReturn:
    folder = Path(str(config.hydra.sweep.dir)).absolute() / str(config.hydra.sweep.subdir)
    with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
        config.hydra.runtime.output_dir = str(folder)
    returned = JobReturn(hydra_cfg=config, status=JobStatus.COMPLETED)
    returned.return_value = status
    return returned
