"""The best weights are kept, and an interruption changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serving.engines.torch.model import DecomposedModel
from serving.progress import silent
from training.fitting.callbacks import EarlyStoppingByStep
from training.fitting.recipe import HATRecipe
from training.fitting.trainer import Trainer
from training.hat import train
from training.hat.distillation import AdapterDistillation
from training.hat.trace import HiddenStateTrace

BRIEF = HATRecipe(steps=12, batch_size=8, eval_steps=3, patience=9)


def looked(losses: list[float], patience: int) -> tuple[EarlyStoppingByStep, Any, SimpleNamespace]:
    """A training whose weight is the number of its step, and that sees these losses, one every other step."""
    seen = iter(losses)
    held_out: Any = SimpleNamespace(to=lambda _: None)
    best = EarlyStoppingByStep(held_out, eval_steps=2, steps=2 * len(losses), patience=patience)
    module: Any = SimpleNamespace(trained_module=torch.nn.Linear(1, 1), loss=lambda _: next(seen), device="cpu")
    trainer: Any = SimpleNamespace(global_step=0, should_stop=False)
    while not trainer.should_stop and trainer.global_step < 2 * len(losses):
        trainer.global_step += 1
        with torch.no_grad():
            module.trained_module.weight.fill_(trainer.global_step)
        best.on_train_batch_end(trainer, module)
    return best, module, trainer


def test_the_best_weights_are_restored_not_the_last() -> None:
    best, module, trainer = looked([3.0, 1.0, 2.0, 2.5, 0.1], patience=2)
    assert (trainer.global_step, trainer.should_stop, best.best_step) == (8, True, 4)
    best.restore_best(module.trained_module)
    assert module.trained_module.weight.item() == 4


def test_the_last_weights_may_be_the_best() -> None:
    best, module, trainer = looked([3.0, 2.0, 1.0], patience=2)
    assert (trainer.should_stop, best.best_step) == (False, 6)
    best.restore_best(module.trained_module)
    assert module.trained_module.weight.item() == 6


def distilled(
    model: DecomposedModel, found: HiddenStateTrace, trainer: Trainer, work: Path, progress: Any = silent, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    study = AdapterDistillation(model, found.shallow_layers, BRIEF, ce_weight=0.1)
    report = train.train(study, found, found.split(0), BRIEF, seed, trainer, work, progress)
    return {name: weight.clone() for name, weight in study.trained_module.state_dict().items()}, report


def test_interrupted_training_reaches_the_same_weights(
    model: DecomposedModel,
    found: HiddenStateTrace,
    one_thread: Trainer,
    fresh: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "SAVE_EVERY_STEPS", 4)

    def stops(done: int, total: int, note: str) -> None:
        if done == 10:
            raise KeyboardInterrupt

    whole, report = distilled(model, found, one_thread, fresh("whole"))
    work = fresh("work")
    with pytest.raises(KeyboardInterrupt):
        distilled(model, found, one_thread, work, stops)
    resumed, again = distilled(model, found, one_thread, work)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert report["validation_losses"] == again["validation_losses"]
    assert (report["steps"], report["parameters"]) == (12, 4 * 64 * 64 + 64)
    assert report["validation_losses"][-1] < report["validation_losses"][0]


def test_held_out_texts_count_by_their_answers_alone(
    model: DecomposedModel,
    found: HiddenStateTrace,
    one_thread: Trainer,
    fresh: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights: dict[tuple[int, ...], float] = {}
    collate, split, recipe = train.collate, found.split(0), replace(BRIEF, prompt_loss_weight=0.5)

    def recorded(trace: Any, texts: Any, prompt_loss_weight: float) -> Any:
        weights[tuple(texts)] = prompt_loss_weight
        return collate(trace, texts, prompt_loss_weight)

    monkeypatch.setattr(train, "collate", recorded)
    study = AdapterDistillation(model, found.shallow_layers, recipe, ce_weight=0.1)
    train.train(study, found, split, recipe, 0, one_thread, fresh("work"), silent)
    assert weights.pop(split.validation) == weights.pop(split.test) == 0.0
    assert set(weights.values()) == {0.5}


def test_another_seed_learns_in_another_order(
    model: DecomposedModel, found: HiddenStateTrace, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    one, other = (distilled(model, found, one_thread, fresh(str(seed)), seed=seed)[0] for seed in (0, 1))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = HATRecipe(steps=130, warmup_steps=30)
    factors = [recipe.lr_factor(step) for step in range(130)]
    assert factors[0] == pytest.approx(1 / 30)
    assert max(factors) == factors[30] == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"prompt_loss_weight": -1.0}, {"patience": 0}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"recipe.{next(iter(wrong))} must be"):
        HATRecipe(**wrong)
