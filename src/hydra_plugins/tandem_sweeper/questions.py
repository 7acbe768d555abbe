"""Hydra's door to `pipeline.answers`. Hydra loads this module at every start, and reads annotations as they are:
nothing heavy here, and no annotations as text.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class QuestionSweeper(Sweeper):
    """Answers a question over many configurations in place of running the jobs of a sweep.

    `question` is a node whose `_target_` is a class with the method `answer(asked)`; see `pipeline.answers.asked`.
    """

    def __init__(self, question: Mapping[str, Any], workers: Mapping[str, Any]) -> None:
        self.question, self.workers = question, workers

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:  # noqa: ARG002
        self.hydra_context: HydraContext = hydra_context
        self.config: DictConfig = config

    def sweep(self, arguments: list[str]) -> None:
        """Raises SystemExit for what a user can mend: an exception would be shown as Hydra's own."""
        from pipeline.answers.asked import ask
        from pipeline.errors import UserError, print_error

        own = self.config.hydra.sweeper
        question: Any = OmegaConf.to_container(own.question, resolve=True)
        workers: Any = OmegaConf.to_container(own.workers, resolve=True)
        sources = self.config.hydra.runtime.config_sources
        folders = [Path(one.path) for one in sources if one.provider == "command-line"]
        try:
            ask(question, workers, arguments, self.config, folders[0] if folders else None)
        except UserError as problem:
            sys.exit(print_error(problem))
