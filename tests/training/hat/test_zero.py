"""The adapter's weights do not depend on the trainer or the number of processes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.engines.torch.model import DecomposedModel
from serving.progress import silent
from training.fitting.recipe import HATRecipe
from training.fitting.trainer import Trainer
from training.hat import train
from training.hat.distillation import AdapterDistillation
from training.hat.trace import HiddenStateTrace

BRIEF = HATRecipe(steps=40, batch_size=7, learning_rate=0.1, warmup_steps=0, eval_steps=2, patience=2)
"""So fast that it gets worse, and stops."""


@pytest.mark.slow  # training/fitting/test_zero.py trains a smaller module in two processes
def test_two_processes_train_the_adapter_that_one_trains(
    model: DecomposedModel, found: HiddenStateTrace, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    """Weights of some 0.3 within 1e-4: gradients are averaged in another order. Of 7 texts one has 4, the other 3."""
    zero = replace(one_thread, strategy="deepspeed", devices=2)
    trained: list[dict[str, torch.Tensor]] = []
    reports: list[dict[str, Any]] = []
    for name, trainer in (("one", one_thread), ("two", zero)):
        study = AdapterDistillation(model, found.shallow_layers, BRIEF, ce_weight=0.1)
        reports.append(train.train(study, found, found.split(0), BRIEF, 0, trainer, fresh(name), silent))
        trained.append({name: weight.clone() for name, weight in study.trained_module.state_dict().items()})
    one, two = reports
    assert one["steps"] == two["steps"] < 40
    assert one["best_step"] == two["best_step"]
    assert all(torch.allclose(trained[0][name], trained[1][name], atol=1e-4) for name in trained[0])
