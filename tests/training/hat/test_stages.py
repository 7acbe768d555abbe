"""The training stages at toy size: their artifacts are served, and useless ones are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint
from serving.engines.torch.draft_heads import load_adapter_drafter, load_medusa_heads
from serving.engines.torch.model import DecomposedModel
from serving.learned import adapter, medusa
from serving.progress import silent
from serving.workload.workload import Workload
from training.fitting.recipe import HATRecipe
from training.fitting.trainer import Trainer
from training.hat import distillation, serving_eval, trace
from training.hat.serving_eval import DraftEvaluation, check
from training.hat.stages import _used_prompt_ids, train_adapter, train_medusa

BRIEF = HATRecipe(steps=60, batch_size=8, learning_rate=4e-3, eval_steps=30)


@pytest.fixture
def options(hidden: Path, toy_cloud: Checkpoint, toy_workload: Workload, one_thread: Trainer) -> dict[str, Any]:
    return {
        "progress": silent,
        "hidden_trace": hidden,
        "cloud": toy_cloud,
        "workload": toy_workload,
        "trainer": one_thread,
        "decoding": Decoding(),
        "recipe": BRIEF,
    }


def test_an_adapter_is_served_and_changes_no_text(
    options: dict[str, Any], toy_model: DecomposedModel, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    train_adapter(tmp_path, work=tmp_path / "work", **options)
    header = adapter.load(tmp_path)
    assert (header.shallow_layers, header.num_parameters) == (2, 4 * 64 * 64 + 64)
    assert header.made_from["layers"] == "2 of 8"
    assert len(load_adapter_drafter(toy_model, 2, tmp_path / adapter.WEIGHTS).layers) == 3
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert figures["served/exact_match"] == 1.0
    assert figures["served/acceptance_length"] == header.acceptance_length > serving_eval.MIN_TOKENS_PER_ROUND
    assert figures["served/prompts"] == 12


def test_with_a_restricted_head_prompts_have_no_weight(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "MAX_LOSS_TOKENS", 8)
    (tmp_path / "work").mkdir()
    recipe = replace(BRIEF, prompt_loss_weight=0.5)
    train_adapter(tmp_path, work=tmp_path / "work", **options | {"recipe": recipe})
    assert adapter.load(tmp_path).metrics["recipe"]["prompt_loss_weight"] == 0.0


def test_held_out_prompts_are_neither_learned_from_nor_chosen_by(hidden: Path) -> None:
    found = trace.read(hidden)
    split = found.split(0)
    used = _used_prompt_ids(found, split)
    assert {found.prompt_ids[text] for text in split.test} == {*found.prompt_ids} - used


def test_heads_are_served_and_change_no_text(
    options: dict[str, Any], toy_model: DecomposedModel, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    train_medusa(tmp_path, work=tmp_path / "work", num_heads=2, tree_candidates=3, **options)
    found = medusa.load(tmp_path)
    assert (found.num_heads, len(found.tree)) == (2, 3)
    assert found.num_parameters == 2 * (64 * 64 + 64 + 64 * toy_model.vocab_size)
    proposed = load_medusa_heads(toy_model, found, toy_model.vocab_size).propose(torch.zeros(toy_model.hidden_size))
    assert (len(proposed.tokens), proposed.parents) == (3, found.parents)
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert figures["served/exact_match"] == 1.0
    assert figures["served/acceptance_length"] == found.acceptance_length > serving_eval.MIN_TOKENS_PER_ROUND
    assert {"test_agreement/1", "test_agreement/2"} <= set(figures)


def test_an_adapter_no_better_than_none_is_refused(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_eval, "MIN_TOKENS_PER_ROUND", 99.0)
    (tmp_path / "work").mkdir()
    with pytest.raises(ValueError, match=r"this adapter is no better than none: \d\.\d\d tokens a round on 12"):
        train_adapter(tmp_path, work=tmp_path / "work", **options | {"recipe": HATRecipe(steps=1)})


def test_the_refusal_names_the_result_and_the_remedies() -> None:
    check(DraftEvaluation(4, 10, 1.2, 0.2, 1.0, 1.0), "these heads are")
    with pytest.raises(ValueError, match=r"1\.05 tokens a round on 4 .* 5\.0% of 1\.0 drafts .* raise|or longer"):
        check(DraftEvaluation(4, 10, 1.05, 0.05, 1.0, 1.0), "these heads are")
