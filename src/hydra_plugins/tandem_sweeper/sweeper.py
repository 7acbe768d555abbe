"""Hydra's door to `pipeline.search`. Hydra loads this module at every start, and reads annotations as they are: nothing
heavy here, and no annotations as text.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class SearchSweeper(Sweeper):
    """Chooses the jobs of a sweep by what earlier ones measured (Optuna); options: conf/hydra/sweeper/search.yaml.

    The folder of the sweep is the memory: one that is the same at the next command goes on there.
    """

    def __init__(
        self,
        metric: str | Sequence[str],
        direction: str | Sequence[str] | None = None,
        n_trials: int = 20,
        n_jobs: int = 1,
        seed: int = 0,
        max_failure_rate: float = 0.0,
        params: Mapping[str, Any] | None = None,
        initial_points: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.metric, self.direction = metric, direction
        self.n_trials, self.n_jobs, self.seed, self.max_failure_rate = n_trials, n_jobs, seed, max_failure_rate
        self.params, self.initial_points = params or {}, initial_points or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context: HydraContext = hydra_context
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Raises SystemExit for what a user can mend: an exception would be shown as Hydra's own."""
        from pipeline.errors import UserError, print_error

        try:
            self._search(arguments)
        except UserError as problem:
            sys.exit(print_error(problem))

    def _search(self, arguments: list[str]) -> None:
        from pipeline.report.hydra_notes import masked_sweep
        from pipeline.search.search import SearchRunner, check_settings
        from pipeline.search.space import parse_space
        from pipeline.search.study import create_objective, open_study

        check_settings(self.n_trials, self.n_jobs, self.max_failure_rate)
        wanted = create_objective(_plain(self.metric), _plain(self.direction))
        asked = parse_space(_plain(self.params), arguments)
        folder = Path(self.config.hydra.sweep.dir).absolute()
        if self.config.get("stage", "all") != "all":  # a plan, or a part: no trial has a value
            self._launch([asked.overrides(asked.example_point())], 0)
            return
        with open_study(folder, asked, wanted, self.seed, self._initial_points(asked.searched)) as study:
            OmegaConf.save(masked_sweep(self.config), folder / "multirun.yaml")
            SearchRunner(study, self._launch, folder, self.n_trials, self.n_jobs, self.max_failure_rate).run()

    def _initial_points(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The points to begin with; what they do not say is as the configuration has it."""
        configured = {key.lstrip("+"): OmegaConf.select(self.config, key.lstrip("+")) for key in keys if "/" not in key}
        known = {key: _plain(value) for key, value in configured.items() if value is not None}
        return {label: {**known, **(point or {})} for label, point in _plain(self.initial_points).items()}

    def _launch(self, jobs: Sequence[Sequence[str]], first_number: int) -> list[Path]:
        returned = self.launcher.launch(jobs, initial_job_idx=first_number)
        return [Path(one.hydra_cfg.hydra.runtime.output_dir) for one in returned if one.hydra_cfg is not None]


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
