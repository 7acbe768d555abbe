"""Tandem from Python: compose a configuration, run it, read its records.

with api.composed("policy=synera", "network=lte") as cfg:
    report = api.run(cfg)
report.summary.metrics()["quality/mean"]
report.records.requests      # one `RequestRecord` a request
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.artifacts.stage import Stage
    from pipeline.report.job import JobReport
    from pipeline.report.records import Records


@contextmanager
def composed(*overrides: str, config_dir: Path | str | None = None) -> "Iterator[DictConfig]":
    """The configuration that a command line with these overrides would have; `config_dir` is a folder of your own."""
    from hydra import compose, initialize_config_dir
    from omegaconf import open_dict

    from pipeline.config.arguments import conf_dir, normalise
    from pipeline.config.compose import composed_choices, composed_words, prepare_hydra
    from pipeline.config.merged_groups import keep_merged_groups

    prepare_hydra()
    keep_merged_groups()
    own = [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"] if config_dir else []
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", [*normalise(overrides), *own], return_hydra_config=True)
        choices = {str(group): str(choice) for group, choice in cfg.hydra.runtime.choices.items()}
        with open_dict(cfg):
            del cfg["hydra"]
        token, words = composed_choices.set(choices), composed_words.set(tuple(overrides))
        try:
            yield cfg
        finally:
            composed_choices.reset(token)
            composed_words.reset(words)


def stages(overrides: Sequence[str]) -> "list[Stage]":
    """The stages of a command line, inputs first: those that its goal needs, or the stage that it stops at.

    Raises ConfigError for an invalid configuration.
    """
    from pipeline.running import create_job, planned_goal

    with composed(*overrides) as cfg:
        job = create_job(cfg)
        return list(job.plan(planned_goal(job)).stages.values())


def run(cfg: "DictConfig") -> "JobReport | None":
    """Runs a configuration as `python -m pipeline` does; None if it stops before serving."""
    from pipeline import running

    return running.run(cfg)


def read_records(artifact: Path) -> "Records":
    """The records in a served artifact's folder."""
    from pipeline.report.records import Records

    return Records.read(artifact)
