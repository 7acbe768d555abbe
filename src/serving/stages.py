"""What configuration may name as a stage of serving."""

from pathlib import Path

from serving.progress import Progress
from serving.runtimes.runtime import Runtime
from serving.setup import Setup


def serve(out: Path, *, progress: Progress, setup: Setup, runtime: Runtime, accelerator: str = "cpu") -> None:
    """Serves the workload, and writes requests.parquet, timeline.parquet, chunks.parquet and meta.json.

    `accelerator` is the torch device that the models run on.
    """
    from serving import results

    results.write(out, setup, runtime, runtime.serve(setup, accelerator, progress))
