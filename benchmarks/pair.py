"""The trained embedded pair that the benchmarks run on; built first if it is not there yet."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import api

if TYPE_CHECKING:
    from serving.deployment.setup import Setup


def artifacts(outputs: str = "outputs") -> dict[str, Path]:
    """The folders of corpus, cloud_model, device_model and thresholds: all that the main job has cached."""
    from pipeline.artifacts.store import Store

    overrides = ("policy=synera", f"outputs={outputs}")
    _build(overrides)
    store = Store(Path(outputs).absolute() / "artifacts")
    return {stage.name: store.path(stage) for stage in api.stages(overrides)}


def served_setup(*overrides: str, outputs: str = "outputs") -> "Setup":
    """What a job with these overrides serves, of artifacts that are built first if they are not there yet."""
    from pipeline.artifacts.store import Store
    from pipeline.config.build import construct

    words = (*overrides, f"outputs={outputs}")
    _build(words)
    store, stage = Store(Path(outputs).absolute() / "artifacts"), api.stages(words)[-1]
    setup: Setup = construct(stage.args["setup"], lambda name: store.path(stage.inputs[name]), "setup")
    return setup


def _build(overrides: tuple[str, ...]) -> None:
    with api.composed(*overrides, "stage=profile", "tracking.uri=none") as cfg:
        api.run(cfg)
