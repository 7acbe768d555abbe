"""`run_sweep.py ARTIFACT -m ...`: a Hydra application whose jobs report; policy=bad fails, killed says nothing, and at
policy=interrupted a person presses Ctrl-C.
"""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline.command.main import report_interrupted_sweep
from pipeline.report import job as report
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import Tracking

ARTIFACT = Path(sys.argv.pop(1))
CONFIG = {
    "policy": "synera",
    "outputs": "outputs",
    "tracking": {"_target_": "pipeline.report.mlflow_store.Tracking", "outputs": "${outputs}"},
    "hydra": {
        "callbacks": {"sweep": {"_target_": "pipeline.report.sweep.SweepCallback", "tracking": "${tracking}"}},
        "sweep": {"dir": "${outputs}/sweep", "subdir": "${hydra.job.num}"},
        "job_logging": {"disable_existing_loggers": False},
    },
}
ConfigStore.instance().store("config", CONFIG)


@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(cfg: DictConfig) -> None:
    job = HydraConfig.get()
    context = JobContext(
        Path(job.runtime.output_dir), Tracking(outputs=cfg.outputs), {"policy": {"name": cfg.policy}},
        tuple(job.overrides.task), number=job.job.num, sweep=Path(job.sweep.dir),
    )  # fmt: skip
    report.report_started(context)
    if cfg.policy == "interrupted":
        raise KeyboardInterrupt
    if cfg.policy == "bad":
        report.report_failure(ValueError("there is no such thing"), context)
    elif cfg.policy != "killed":
        with open(os.devnull, "w") as nowhere:
            report.report_job(ARTIFACT, context, nowhere)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        report_interrupted_sweep()
