"""Layers of least influence are dropped, and what is left learns the whole model's distributions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serving.engines.models import Checkpoint
from serving.progress import silent
from training.checkpoints import stages
from training.checkpoints.healing import first_changed, heal_pruned
from training.checkpoints.pruning import kept_layers, layer_influences, load_pruned
from training.checkpoints.self_prompts import read
from training.fitting.recipe import HealingRecipe
from training.fitting.trainer import Trainer

FP32 = Trainer(threads=1, precision="fp32")
QUIET = {"progress": lambda *_: None, "trainer": FP32}


@pytest.fixture(scope="module")
def prompts(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, work = tmp_path_factory.mktemp("prompts"), tmp_path_factory.mktemp("work")
    stages.record_self_prompts(
        out, work=work, model=Checkpoint(path=chat_model), answer_tokens=1500, rows=16, top_k=8, **QUIET
    )
    return out


def test_a_layer_that_changes_nothing_has_no_influence(chat_model: Path) -> None:
    model = load_pruned(chat_model, range(8))
    with torch.no_grad():
        for name, weight in model.model.layers[3].named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    found = layer_influences(model, [torch.arange(9), torch.arange(5)], lambda *_: None)
    assert found[3] == pytest.approx(0, abs=1e-6)
    assert all(one > 1e-4 for layer, one in enumerate(found) if layer != 3)
    assert kept_layers(found, 7) == (0, 1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize("keep", [0, 8, 9])
def test_a_number_of_layers_that_drops_none_or_all_is_refused(keep: int) -> None:
    with pytest.raises(ValueError, match=f"keep is {keep}; the model has 8 layers"):
        kept_layers([0.1] * 8, keep)


def test_a_pruned_model_computes_its_layers_in_order(chat_model: Path) -> None:
    whole, pruned = load_pruned(chat_model, range(8)), load_pruned(chat_model, (0, 1, 5))
    tokens = torch.arange(7)[None]
    whole.model.layers = torch.nn.ModuleList(whole.model.layers[i] for i in (0, 1, 5))
    with torch.no_grad():
        assert torch.equal(pruned(tokens, use_cache=True).logits, whole(tokens, use_cache=False).logits)
    assert first_changed((0, 1, 5)) == 2


def test_healing_makes_the_pruned_model_agree(chat_model: Path, prompts: Path, tmp_path: Path) -> None:
    ranked, out, work = (tmp_path / name for name in ("ranked", "out", "work"))
    for folder in (ranked, out, work):
        folder.mkdir()
    model = Checkpoint(path=chat_model)
    stages.rank_layers(ranked, model=model, self_prompts=prompts, texts=4, **QUIET)
    recipe = HealingRecipe(tokens_per_step=128, learning_rate=3e-3, head_tokens=10)
    stages.prune_model(
        out, work=work, model=model, self_prompts=prompts, layer_influences=ranked, keep=4, recipe=recipe, **QUIET
    )
    report = json.loads((out / "pruning.json").read_text())
    assert report["agreement"] > report["agreement_before"] + 0.1
    assert report["losses"][-1] < report["losses"][0]
    assert Checkpoint(path=out).has_weights
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 4


@pytest.mark.slow
def test_healing_runs_by_deepspeed_as_by_lightning(chat_model: Path, prompts: Path, tmp_path: Path) -> None:
    found = read(prompts)
    recipe = HealingRecipe(tokens_per_step=512, learning_rate=3e-3, head_tokens=10)
    losses = []
    for name, trainer in (("lightning", FP32), ("deepspeed", replace(FP32, strategy="deepspeed"))):
        out, work = tmp_path / name, tmp_path / f"{name}_work"
        for folder in (out, work):
            folder.mkdir()
        heal_pruned(out, work, silent, str(chat_model), (0, 1, 5, 6), found, recipe, 0, trainer)
        losses.append(json.loads((out / "pruning.json").read_text())["losses"])
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert losses[0][-1] < losses[0][0]


def test_a_share_that_leaves_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match=r"held_out_share must be below 0.4, got 0.5"):
        HealingRecipe(held_out_share=0.5)
