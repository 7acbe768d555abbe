"""One job: plan it, realise its stages, report. It has never heard of the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts.progress_display import ProgressCallback, StageObserver
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.config.build import ConfigSchema, load
from pipeline.config.library import ConfigLibrary
from pipeline.config.plan import Plan, build_arguments, make_plan
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Job:
    """A resolved configuration, ready to be planned and run in the store below its `outputs`."""

    config: Mapping[str, Any]
    library: ConfigLibrary
    observer: StageObserver
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", Store(Path(self.config["outputs"]).absolute() / "artifacts"))

    @property
    def schema(self) -> ConfigSchema:
        return ConfigSchema(self.store.content_digest, self.library.named_config)

    @property
    def force(self) -> frozenset[str]:
        """Stages to build again: a list, or one name."""
        names = self.config["force"] or ()
        return frozenset([names] if isinstance(names, str) else names)

    def plan(self, goal: str = "serve") -> Plan:
        """The stages that `goal` needs; raises ConfigError for what cannot work."""
        found = make_plan(self.config["stages"], self.schema, (goal,))
        unknown = sorted(self.force - set(found.stages))
        if unknown:
            raise ConfigError(
                f"force: there is no stage {unknown[0]!r} in this run; there are {', '.join(found.stages)}."
            )
        return found

    def run(self, goals: Iterable[Stage]) -> tuple[Path, frozenset[str]]:
        """Builds what is missing up to `goals`; the last one's folder, and the digests of what was built now."""
        self.store.ensure_writable()
        runner = Runner(self.store, _call_stage, self.observer, self.force)
        folders = [runner.ensure_built(goal) for goal in goals]
        return folders[-1] if folders else self.store.root, runner.built


def _call_stage(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback) -> None:
    """Runs a stage's function with what it declares: its options, `out`, and `work` and `progress` if it wants them."""
    import inspect

    target = load(stage.target, stage.name)
    wanted = inspect.signature(target).parameters
    own = {name: value for name, value in (("work", work), ("progress", progress)) if name in wanted}
    try:
        target(out, **own, **build_arguments(stage, inputs.__getitem__))
    except ValueError as problem:
        raise ConfigError(f"{stage.name}: {problem}") from problem
