"""One job: plan it, realise its stages, report. It has never heard of the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts.progress_display import Announce, Progress
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.config.build import Schema, load
from pipeline.config.library import Library
from pipeline.config.plan import Plan, arguments, plan
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Job:
    """A resolved configuration, ready to be planned and run in the store below its `outputs`."""

    data: Mapping[str, Any]
    library: Library
    announce: Announce
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", Store(Path(self.data["outputs"]).absolute() / "artifacts"))

    @property
    def schema(self) -> Schema:
        return Schema(self.store.content, self.library.node)

    @property
    def force(self) -> frozenset[str]:
        """Stages to build again: a list, or one name."""
        names = self.data["force"] or ()
        return frozenset([names] if isinstance(names, str) else names)

    def plan(self, goal: str = "serve") -> Plan:
        """The stages that `goal` needs; raises ConfigError for what cannot work."""
        found = plan(self.data["stages"], self.schema, (goal,))
        unknown = sorted(self.force - set(found.stages))
        if unknown:
            raise ConfigError(
                f"force: there is no stage {unknown[0]!r} in this run; there are {', '.join(found.stages)}."
            )
        return found

    def run(self, goals: Iterable[Stage]) -> tuple[Path, frozenset[str]]:
        """Builds what is missing up to `goals`; the last one's folder, and the digests of what was built now."""
        self.store.prepare()
        runner = Runner(self.store, _call, self.announce, self.force)
        folders = [runner.realise(goal) for goal in goals]
        return folders[-1] if folders else self.store.root, runner.built


def _call(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: Progress) -> None:
    """Runs a stage's function with what it declares: its options, `out`, and `work` and `progress` if it wants them."""
    import inspect

    target = load(stage.target, stage.name)
    wanted = inspect.signature(target).parameters
    own = {name: value for name, value in (("work", work), ("progress", progress)) if name in wanted}
    try:
        target(out, **own, **arguments(stage, inputs.__getitem__))
    except ValueError as problem:
        raise ConfigError(f"{stage.name}: {problem}") from problem
