"""What configuration may name as a stage of HAT's training: a trace of hidden states, the adapter, Medusa heads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.policy.policy import EngineRequirements
from serving.policy.slots.draft import MedusaDraft, WindowDraft
from serving.policy.slots.placement import UShapedPlacement
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.prompts import training_workload
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.hat import serving_eval
from training.hat.batches import HATRecipe

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from training.hat.trace import HiddenStateTrace, TextSplit


def record_hidden_states(
    out: Path,
    *,
    progress: Progress,
    cloud: Checkpoint,
    timed_architecture: Architecture,
    shallow_layers: int,
    workload: Workload,
    decoding: Decoding,
    prompt_factor: int = 1,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """The large model answers prompts, and of every token of prompt and answer two hidden states are kept: behind the
    first `shallow_layers` of the timed architecture's layers, and behind the last; hidden.safetensors and hidden.json.

    Of the embedded pair's tasks it asks `prompt_factor` as many prompts as `workload` does, all of the training split,
    so that those of `workload` itself are left to be served. Raises ValueError for less than one.
    """
    from serving.deployment.model_loading import load_models, make_queries, num_layers
    from training.hat import trace
    from training.hat.trace import record

    layers = UShapedPlacement(shallow_layers=shallow_layers).device_layers(num_layers(cloud), timed_architecture.layers)
    models = load_models(cloud, cloud, accelerator)
    asked = make_queries(training_workload(workload, prompt_factor), decoding, seed, 1, models.tokenizer)
    found = record(models, asked, layers, seed, progress)
    made_from = {
        "model": cloud.display_name,
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
        "layers": f"{layers} of {models.cloud_layers}",
        "seed": str(seed),
    }
    trace.write(out, found, made_from)


def train_adapter(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    hidden_trace: Path,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    draft: WindowDraft = WindowDraft(12, "confidence", 0.6),  # noqa: B008
    ce_weight: float = 0.1,
    recipe: HATRecipe = HATRecipe(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Distils HAT's adapter from the trace `hidden_trace` (section 3.4, Eq. 4), and serves prompts that it does not
    know.

    Writes adapter.safetensors, adapter.json and metrics.json. Raises ValueError, with the figures, for an adapter whose
    drafts are hardly better than none.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.torch.model import load_model
    from serving.learned import adapter
    from training.hat import trace, train
    from training.hat.distillation import AdapterDistillation

    found = trace.read(hidden_trace)
    split = found.split(seed)
    model = load_model(cloud.name_or_path, num_layers=found.shallow_layers + 1)
    recipe = recipe.limit_epochs(len(split.train))
    study = AdapterDistillation(model, found.shallow_layers, recipe, ce_weight)
    report = train.train(study, found, split, recipe, seed, trainer, work, progress) | {"ce_weight": ce_weight}
    _save_weights(study.trained_module, out / adapter.WEIGHTS)
    header = adapter.Adapter(found.shallow_layers, report["parameters"], made_from=trace.made_from(hidden_trace))
    header.save(out)
    models = load_models(replace(cloud, quantization="none", adapter=out), cloud, accelerator)
    asked = _held_out_queries(found, split, workload, decoding, seed, models)
    served = serving_eval.evaluate_drafts(draft, models, asked, seed, progress)
    serving_eval.check(served, "this adapter is")
    _write_artifact(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def train_medusa(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    hidden_trace: Path,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    num_heads: int = 4,
    tree_candidates: int = 8,
    head_decay: float = 0.8,
    recipe: HATRecipe = HATRecipe(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains Medusa heads on the trace `hidden_trace` (Medusa-1, Cai et al. 2024), makes the tree that suits them, and
    serves prompts that they were not trained on.

    Writes medusa.safetensors, medusa.json and metrics.json. Raises ValueError, with the figures, for heads whose
    proposals are hardly better than none.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.torch.model import load_model
    from serving.learned import medusa
    from training.hat import trace, train
    from training.hat.distillation import MedusaModule
    from training.hat.serving_eval import build_tree

    found = trace.read(hidden_trace)
    split = found.split(seed)
    recipe = recipe.limit_epochs(len(split.train))
    study = MedusaModule(load_model(cloud.name_or_path, num_layers=1), num_heads, recipe, head_decay)
    report = train.train(study, found, split, recipe, seed, trainer, work, progress) | {"head_decay": head_decay}
    _save_weights(study.trained_module, out / medusa.WEIGHTS)
    accuracies = study.rank_accuracies(found, split.validation)
    header = medusa.MedusaHeads(
        num_heads,
        build_tree(accuracies, tree_candidates),
        report["parameters"],
        str(out),
        made_from=trace.made_from(hidden_trace),
    )
    models = load_models(cloud, cloud, accelerator, EngineRequirements(medusa=header))
    asked = _held_out_queries(found, split, workload, decoding, seed, models)
    served = serving_eval.evaluate_drafts(MedusaDraft(header), models, asked, seed, progress)
    serving_eval.check(served, "these heads are")
    report |= {"accuracies": accuracies}
    _write_artifact(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def _held_out_queries(
    trace: HiddenStateTrace, split: TextSplit, workload: Workload, decoding: Decoding, seed: int, models: LoadedModels
) -> list[Query]:
    """The workload's prompts that nothing was learned from. Raises ValueError where there is none."""
    from serving.deployment.model_loading import make_queries

    seen = {trace.prompt_ids[text] for text in (*split.train, *split.validation)}
    asked = [q for q in make_queries(workload, decoding, seed, 1, models.tokenizer) if q.prompt.id not in seen]
    if not asked:
        raise ValueError("every prompt of workload.profiling was learned from; raise workload.profiling.num_prompts")
    return asked


def _save_weights(trained: Any, file: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in trained.state_dict().items()}, file)


def _write_artifact(out: Path, header: Any, evaluation: serving_eval.DraftEvaluation) -> None:
    """The header with what was found when it was served, and metrics.json beside it."""
    report: Mapping[str, Any] = header.metrics
    replace(header, metrics={**report, **evaluation.metrics()}).save(out)
    names = ("parameters", "steps", "best_step", "training_s", "p10_step_s")
    shown = {name: report[name] for name in names} | {"validation_loss": min(report["validation_losses"])}
    shown |= {f"test_agreement/{i}": share for i, share in enumerate(report["test_agreement"], start=1)}
    (out / "metrics.json").write_text(json.dumps(shown | evaluation.metrics(), indent=1), encoding="utf-8")
