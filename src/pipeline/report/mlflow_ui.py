"""`python -m pipeline ui`: the MLflow UI on what was run, and the pages to open there."""

import os
import sys

from pipeline.errors import UserError
from pipeline.report import mlflow_view
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_stages import stage_experiment
from pipeline.report.mlflow_store import Tracking, mask_secrets

HOST = "127.0.0.1"


def serve_ui(tracking: Tracking, port: int = 5000) -> None:
    """Prints the pages and becomes the UI; of a server that runs already, it prints the pages alone.

    Raises UserError where nothing was logged.
    """
    if tracking.database and not tracking.database.exists():
        raise UserError(
            f"nothing was logged yet: there is no {tracking.database}. Run `python -m pipeline +policy=synera` first, "
            "or name the folder of your runs as outputs=FOLDER."
        )
    served = tracking.database is None and tracking.address.startswith("http")
    base = mask_secrets(tracking.address).rstrip("/") if served else f"http://{HOST}:{port}"
    try:
        lines = describe_pages(MlflowLogger.open(tracking), base)
    except Exception as problem:  # whatever a store or server may raise
        reason = mask_secrets(str(problem).strip().partition("\n")[0])[:300]
        raise UserError(f"MLflow's store {mask_secrets(tracking.address)} cannot be opened: {reason}") from problem
    print("\n".join(lines), flush=True)
    if not served:
        os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        os.environ["MLFLOW_BACKEND_STORE_URI"] = tracking.address  # all users see commands, and it may have a password
        command = [sys.executable, "-m", "mlflow", "ui", "--host", HOST, "--port", str(port)]
        os.execv(sys.executable, [*command, "--workers", "1"])  # one person's; four take 1 GB


def describe_pages(logger: MlflowLogger, base: str) -> list[str]:
    """What to open: the last sweep if there is one, all runs, and the stages that they share."""
    last = mlflow_view.last_sweep(logger)
    pages = {"last sweep": mlflow_view.sweep_page(logger.experiment_id, last)} if last else {}
    pages["all runs"] = mlflow_view.runs_page(logger.experiment_id)
    pages["stages"] = mlflow_view.runs_page(stage_experiment(logger.tracking))
    return [f"{name + ':':<12} {base}{page}" for name, page in pages.items()]
