"""What configuration may name as a stage of serving."""

from pathlib import Path

from serving.progress import Progress
from serving.runtime import Runtime
from serving.setup import Setup


def serve(out: Path, *, progress: Progress, setup: Setup, runtime: Runtime, accelerator: str = "cpu") -> None:
    """Serves the workload, and writes requests.parquet, timeline.parquet, chunks.parquet and meta.json.

    `accelerator` is the torch device that the models run on.
    """
    from serving import results
    from serving.open import open_models, queries

    models = open_models(setup.pair.device, setup.pair.cloud, accelerator)
    asked = queries(setup.workload, setup.decoding, setup.seed, setup.devices, models)
    records = runtime.serve(setup, models, asked, progress)
    results.write(out, setup, type(runtime).__name__.lower(), asked, records, models.tokenizer)
