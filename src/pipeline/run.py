"""What one composed configuration leads to: a printed plan, or built stages and a report."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from pipeline.announce import terminal
from pipeline.compose import register_resolvers, resolved
from pipeline.errors import ConfigError
from pipeline.job import Job
from pipeline.library import Library
from pipeline.plan import KINDS, Plan
from pipeline.stage import Stage

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

STOPS = ("all", "plan", "train", "profile")


def run(cfg: DictConfig) -> None:
    """Plans, builds and reports one job; raises UserError for what a user can mend."""
    job = Job(resolved(cfg), Library(_loader(), cfg.libraries), terminal(sys.stderr))
    stop = _stop(cfg.stage)
    plan = job.plan()
    if stop == "plan":
        print(describe(job, plan))
        return
    served = job.run(plan, stop)
    if served is None:
        print(describe(job, plan))
        return
    print(served)


def planned(overrides: Sequence[str]) -> list[Stage]:
    """The stages that a command line asks for, inputs before what uses them."""
    from hydra import compose, initialize_config_dir

    from pipeline.arguments import conf_dir, rewritten

    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", rewritten(list(overrides)))
        job = Job(resolved(cfg), Library(_loader(), cfg.libraries), terminal(sys.stderr))
        return list(job.plan().stages.values())


def describe(job: Job, plan: Plan) -> str:
    """A line a stage: what it is, and whether and why it would run."""
    width = max(len(stage.key) for stage in plan.stages.values())
    lines = [f"  {plan.kinds[name]:<8} {stage.key:<{width}}  {job.store.why(stage)}" for name, stage in plan.stages.items()]
    return "\n".join(["stages, in the order in which they run:", *lines])


def _stop(asked: str) -> str:
    if asked not in STOPS:
        raise ConfigError(f"stage is {asked!r}; allowed are {', '.join(STOPS)} ({', '.join(KINDS)} are kinds of stages).")
    return asked


def _loader() -> "ConfigLoaderImpl":
    from hydra.core.global_hydra import GlobalHydra

    loader = GlobalHydra.instance().config_loader()
    return loader  # type: ignore[return-value]
