"""The trained embedded pair that the benchmarks run on; built first if it is not there yet."""

from pathlib import Path

from pipeline import api


def artifacts(outputs: str = "outputs") -> dict[str, Path]:
    """The folders of corpus, cloud_model, device_model and thresholds: all that the main job has cached."""
    from pipeline.artifacts.store import Store

    overrides = ("policy=synera", f"outputs={outputs}")
    with api.composed(*overrides, "stage=profile", "tracking.uri=none") as cfg:
        api.run(cfg)
    store = Store(Path(outputs).absolute() / "artifacts")
    return {stage.name: store.path(stage) for stage in api.stages(overrides)}
