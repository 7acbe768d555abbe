"""Which prompts may be learned from, where others are left to be served."""

from __future__ import annotations

from dataclasses import replace

from serving.workload.datasets.tiny import TinyTasks
from serving.workload.workload import Workload


def training_workload(workload: Workload, prompt_factor: int) -> Workload:
    """Of the embedded pair's tasks `prompt_factor` as many prompts, all of the training split; any other workload as it
    is.

    Raises ValueError for less than one.
    """
    if prompt_factor < 1:
        raise ValueError(f"prompt_factor is {prompt_factor}; a trace has at least as many prompts as workload.profiling")
    if not isinstance(workload.dataset, TinyTasks):
        return workload
    return replace(
        workload, dataset=replace(workload.dataset, split="train"), num_prompts=prompt_factor * workload.num_prompts
    )
