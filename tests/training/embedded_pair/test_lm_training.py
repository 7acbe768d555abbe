from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from serving.progress import silent
from training.embedded_pair import llama, lm_training, stages
from training.embedded_pair.model_config import LlamaSizes
from training.fitting.recipe import LMRecipe
from training.fitting.trainer import Trainer

STEPS = 11
Fresh = Callable[[str], Path]


class KilledError(Exception):
    pass


def killed_at(step: int, error: type[BaseException]) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, note: str) -> None:
        if done == step:
            raise error

    return progress


def small(
    out: Path, work: Path, corpus: Path, teacher: Path, progress: Callable[[int, int, str], None]
) -> dict[str, Any]:
    stages.train(
        out,
        work=work,
        progress=progress,
        corpus=corpus,
        teacher=teacher,
        architecture=LlamaSizes(hidden_size=32, layers=4, heads=2, intermediate_size=64),
        recipe=LMRecipe(steps=STEPS, batch_size=4, distillation_weight=0.7),
        trainer=Trainer(threads=1, precision="fp32"),
    )
    report: dict[str, Any] = json.loads((out / "training.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("error", [KilledError, KeyboardInterrupt])
def test_a_killed_training_continues_to_the_same_weights(
    fresh: Fresh,
    tmp_path: Path,
    toy_corpus: Path,
    toy_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(lm_training, "SAVE_EVERY_STEPS", 4)
    whole = small(fresh("whole"), fresh("w"), toy_corpus, toy_pair[0], silent)
    work, shown = fresh("work"), []
    with pytest.raises(error):
        small(fresh("killed"), work, toy_corpus, toy_pair[0], killed_at(7, error))
    again = small(fresh("again"), work, toy_corpus, toy_pair[0], lambda done, total, note: shown.append(done))
    assert shown == list(range(5, STEPS + 1))
    assert again["losses"] == whole["losses"]
    assert len(whole["losses"]) == STEPS
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    assert all(first[name].equal(second[name]) for name in first)


def test_progress_reports_steps_and_rate(fresh: Fresh, toy_corpus: Path, toy_pair: tuple[Path, Path]) -> None:
    shown: list[tuple[int, int, str]] = []
    report = small(fresh("out"), fresh("work"), toy_corpus, toy_pair[0], lambda *at: shown.append(at))
    assert [(done, total) for done, total, _ in shown] == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert all("loss" in note and "steps/s" in note for *_, note in shown)
    assert report["machine"]["cores"] >= 1
    assert report["parameters"] > 0
    assert report["precision"] == "float32"


def test_training_lowers_the_loss(toy_pair: tuple[Path, Path]) -> None:
    losses = json.loads((toy_pair[0] / "training.json").read_text(encoding="utf-8"))["losses"]
    assert losses[-1] < losses[0] - 0.3


def note_place(model: llama.Llama, move: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> llama.Llama:
    """Stands for `_apply`, by which torch moves a module: notes the device, and leaves the weights where they are."""
    model.place = move(torch.empty(0)).device
    return model


def places(module: lm_training.LMModule) -> list[str]:
    return [str(model.place) for model in (module.model, *module._teacher) if model]


def test_the_teacher_trains_where_the_module_does_and_both_are_validated_on_the_cpu(
    fresh: Fresh, toy_corpus: Path, toy_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning moves the module alone."""
    seen, fit, validate = [], Trainer.fit, lm_training._validation_loss

    def fit_elsewhere(trainer: Trainer, module: lm_training.LMModule, *arguments: Any, **named: Any) -> None:
        fit(trainer, module, *arguments, **named)
        module.to("meta")
        module.on_fit_start()
        seen.append(places(module))
        module.on_fit_end()

    def note_validation(module: lm_training.LMModule, *arguments: Any) -> float:
        seen.append(places(module))
        return validate(module, *arguments)

    monkeypatch.setattr(llama.Llama, "_apply", note_place)
    monkeypatch.setattr(Trainer, "fit", fit_elsewhere)
    monkeypatch.setattr(lm_training, "_validation_loss", note_validation)
    small(fresh("out"), fresh("work"), toy_corpus, toy_pair[0], silent)
    assert seen == [["meta", "meta"], ["cpu", "cpu"]]


class MatrixProducts(TorchDispatchMode):
    """Collects the dtypes of the factors of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            self.dtypes |= {each.dtype for each in args if isinstance(each, torch.Tensor)}
        return func(*args, **(kwargs or {}))


def test_no_product_is_in_bf16_where_the_trainer_computes_in_fp32(
    fresh: Fresh, toy_corpus: Path, toy_pair: tuple[Path, Path]
) -> None:
    """The optimiser's too: a processor with AVX2 alone takes 100 times as long for them."""
    with MatrixProducts() as products:
        small(fresh("out"), fresh("work"), toy_corpus, toy_pair[0], silent)
    assert products.dtypes == {torch.float32}
