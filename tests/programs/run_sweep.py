"""`run_sweep.py FILE`: multiruns of a Hydra application whose jobs report, in one process, whose imports they share;
policy=bad fails, killed says nothing, and at policy=interrupted a person presses Ctrl-C.

FILE holds a JSON list of (artifact, words of the command line); each ends with a line `ended CODE` of its own.
"""

import json
import os
import sys
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from run_commands import write_only

from pipeline.command.main import report_interrupted_sweep
from pipeline.report import job as report
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import Tracking

CONFIG = {
    "policy": "synera",
    "artifact": "???",
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
            report.report_job(Path(cfg.artifact), context, nowhere)


def run(artifact: str, words: list[str]) -> int:
    sys.argv = ["run_sweep.py", *words, f"artifact={artifact}"]
    try:
        main()
    except KeyboardInterrupt:
        report_interrupted_sweep()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    write_only("png")  # the other kinds take two thirds of the time
    for command in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        code = run(*command)
        for stream in (sys.stdout, sys.stderr):
            print(f"ended {code}", file=stream, flush=True)
