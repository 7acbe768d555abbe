"""The process that finishes a deferred report: `python -m pipeline.report.finish`, started by `deferred.start`."""

import io
import sys

from pipeline.report import deferred
from pipeline.report.job import report_job


def finish(text: str) -> None:
    """Draws and logs what `deferred.encode` wrote; a failure becomes a note."""
    artifact, context = deferred.decode(text)
    printed = io.StringIO()
    try:
        report = report_job(artifact, context, printed)
    except Exception as problem:  # whatever it is: this process has no terminal
        deferred.write_failure(context, f"{type(problem).__name__}: {problem}")
        raise
    if context.tracking.enabled and report.result.run_id is None:
        said = [line for line in printed.getvalue().splitlines() if line.startswith("MLflow: ")]
        deferred.write_failure(context, said[-1] if said else "MLflow did not say why.")


if __name__ == "__main__":
    finish(sys.stdin.read())
