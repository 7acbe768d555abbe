"""What no training can use is refused when a stage is planned, before anything is recorded or trained for it."""

from pathlib import Path
from typing import Any

import pytest

from serving.engines.models import Checkpoint
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload
from tests.support.fake_setup import Questions
from training.embedded_pair.stages import check_train
from training.fitting.recipe import LMRecipe
from training.hat import stages as hat
from training.routing import stages as routing
from training.synera import stages as synera
from training.wisp import stages as wisp
from training.wisp.mlp import MLP

COMMON: dict[str, Any] = {
    "device": Checkpoint(hub="small"), "cloud": Checkpoint(hub="large"), "workload": Workload(dataset=Questions()),
}  # fmt: skip
WITH_ADAPTER = Checkpoint(hub="small", adapter=Path("adapter"))


@pytest.mark.parametrize(
    ("check", "args", "message"),
    [
        (hat.check_record_hidden_states, {"prompt_factor": 0}, "prompt_factor is 0"),
        (hat.check_train_adapter, {"ce_weight": -1}, "ce_weight is -1"),
        (hat.check_train_medusa, {"num_heads": 0}, "num_heads is 0"),
        (hat.check_train_medusa, {"head_decay": -2}, "head_decay -2"),
        (hat.check_train_medusa, {"tree_candidates": 0}, "tree_candidates is 0"),
        (hat.check_train_medusa, {"num_heads": 1, "tree_candidates": 11}, "num_heads=1 make 1 to 10 candidates"),
        (synera.check_profile_thresholds, {"c_quantile": 1.5}, "c_quantile is 1.5"),
        (synera.check_profile_thresholds, {"c_quantile": -1}, "c_quantile is -1"),
        (routing.check_record_routes, {"max_comparisons": -1}, "max_comparisons is -1"),
        (routing.check_record_routes, {"prompt_factor": 0}, "prompt_factor is 0"),
        (routing.check_train_citer, {"routed_share": 1.5}, "routed_share is 1.5"),
        (routing.check_train_co_llm, {"device": WITH_ADAPTER, "routed_share": 0}, "routed_share is 0"),
        (routing.check_train_co_llm, {"device": WITH_ADAPTER, "joint": True}, "joint training changes the small model"),
        (wisp.check_compare_predictors, {"families": [MLP(), MLP(hidden_sizes=(8,))]}, "families has MLP twice"),
        (wisp.check_compare_at_recall, {"families": [MLP()], "recalls": [1.5]}, r"recalls are \[1.5\]"),
        (wisp.check_measure_predictor_latency, {"families": [MLP(), MLP()]}, "families has MLP twice"),
        (wisp.check_measure_waste, {"families": {"a": MLP()}, "seeds": (0, 1), "recalls": ()}, r"recalls are \[\]"),
        (wisp.check_measure_waste, {"families": {"a": MLP()}}, "compares predictors, got 1"),
        (check_train, {"recipe": LMRecipe(steps=1, distillation_weight=0.7)}, "this model has no teacher"),
    ],
)
def test_a_value_that_no_training_can_use_is_refused(check: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(**COMMON | args)


def test_values_at_the_ends_of_their_ranges_are_taken() -> None:
    hat.check_train_medusa(**COMMON, num_heads=1, tree_candidates=10)
    hat.check_train_adapter(**COMMON, ce_weight=0)
    synera.check_profile_thresholds(**COMMON, c_quantile=1)
    routing.check_train_co_llm(device=WITH_ADAPTER)
    wisp.check_measure_waste(families={"a": MLP()}, seeds=(0, 1))
    check_train(recipe=LMRecipe(steps=1, distillation_weight=0.7), teacher=Path("teacher"))


class Short:
    """A data set of three prompts that a stage has written."""

    name, metrics, measures_quality_of, is_built = "three prompts", (), "none", True

    def prompts(self) -> list[Prompt]:
        return [Prompt(str(number), "why?", (), "t") for number in range(3)]


@pytest.mark.parametrize(
    "check",
    [
        synera.check_profile_thresholds, synera.check_measure_alignment, wisp.check_record_token_trace,
        hat.check_record_hidden_states, hat.check_train_adapter, hat.check_train_medusa, routing.check_record_routes,
    ],
)  # fmt: skip
def test_more_prompts_than_the_data_set_has_are_refused_before_models_are_trained(check: Any) -> None:
    with pytest.raises(ValueError, match=r"num_prompts=4 is more than the data set's 3 prompts"):
        check(**COMMON | {"workload": Workload(dataset=Short(), num_prompts=4)})
