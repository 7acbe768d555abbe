from __future__ import annotations

import pytest

from training.fitting.recipe import LMRecipe


def test_the_learning_rate_rises_stays_and_falls() -> None:
    recipe = LMRecipe(steps=100, warmup_steps=10, stable_share=0.5)
    factors = [recipe.lr_factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:51] == [1.0] * 42
    assert factors[75] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.02)
    assert factors[50:] == sorted(factors[50:], reverse=True)


def test_a_recipe_without_decay_keeps_its_learning_rate() -> None:
    assert LMRecipe(steps=50, stable_share=1.0).lr_factor(49) == 1.0


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("learning_rate", -1.0), ("distillation_weight", 1.5)])
def test_invalid_recipes_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"recipe.{name} must be"):
        LMRecipe(**{"steps": 10, name: value})  # type: ignore[arg-type]
