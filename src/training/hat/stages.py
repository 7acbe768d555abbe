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
from serving.policy.engine_requirements import Provision
from serving.policy.slots.draft import Heads, Window
from serving.policy.slots.placement import UShape
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.prompts import taught
from training.fitting.trainer import ALL_CORES, Trainer
from training.hat import serving_eval
from training.hat.batches import Recipe

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query
    from training.hat.trace import Split, Trace


def record_hidden(
    out: Path,
    *,
    progress: Progress,
    cloud: Checkpoint,
    timing: Architecture,
    shallow: int,
    workload: Workload,
    decoding: Decoding,
    times: int = 1,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """The large model answers prompts, and of every token of prompt and answer two hidden states are kept: behind the
    first `shallow` of the timed architecture's layers, and behind the last; hidden.safetensors and hidden.json.

    Of the embedded pair's tasks it asks `times` as many prompts as `workload` does, all of the training split, so that
    those of `workload` itself are left to be served. Raises ValueError for less than one.
    """
    from serving.deployment.model_loading import depth, open_models, queries
    from training.hat import trace
    from training.hat.trace import record

    layers = UShape(shallow=shallow).kept(depth(cloud), timing.layers)
    models = open_models(cloud, cloud, accelerator)
    asked = queries(taught(workload, times), decoding, seed, 1, models.tokenizer)
    found = record(models, asked, layers, seed, progress)
    made_from = {
        "model": cloud.named,
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
    hidden: Path,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    draft: Window = Window(12, "confidence", 0.6),  # noqa: B008
    w_ce: float = 0.1,
    recipe: Recipe = Recipe(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = ALL_CORES,
) -> None:
    """Distils HAT's adapter from the trace `hidden` (section 3.4, Eq. 4), and serves prompts that it does not
    know.

    Writes adapter.safetensors, adapter.json and metrics.json. Raises ValueError, with the figures, for an adapter whose
    drafts are hardly better than none.
    """
    from serving.deployment.model_loading import open_models
    from serving.engines.torch.model import open_model
    from serving.learned import adapter
    from training.hat import trace, train
    from training.hat.distillation import Distillation

    found = trace.read(hidden)
    split = found.split(seed)
    model = open_model(cloud.where, layers=found.layers + 1)
    recipe = recipe.bounded(len(split.train))
    study = Distillation(model, found.layers, recipe, w_ce)
    report = train.take(study, found, split, recipe, seed, trainer, work, progress) | {"w_ce": w_ce}
    _save(study.trained, out / adapter.WEIGHTS)
    header = adapter.Adapter(found.layers, report["parameters"], made_from=trace.made_from(hidden))
    header.save(out)
    models = open_models(replace(cloud, quantization="none", adapter=out), cloud, accelerator)
    asked = _unseen(found, split, workload, decoding, seed, models)
    served = serving_eval.serve(draft, models, asked, seed, progress)
    serving_eval.check(served, "this adapter is")
    _finish(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def train_medusa(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    hidden: Path,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    heads: int = 4,
    candidates: int = 8,
    decay: float = 0.8,
    recipe: Recipe = Recipe(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = ALL_CORES,
) -> None:
    """Trains Medusa heads on the trace `hidden` (Medusa-1, Cai et al. 2024), makes the tree that suits them, and serves
    prompts that they were not trained on.

    Writes medusa.safetensors, medusa.json and metrics.json. Raises ValueError, with the figures, for heads whose
    proposals are hardly better than none.
    """
    from serving.deployment.model_loading import open_models
    from serving.engines.torch.model import open_model
    from serving.learned import medusa
    from training.hat import trace, train
    from training.hat.distillation import Foresight
    from training.hat.serving_eval import grow

    found = trace.read(hidden)
    split = found.split(seed)
    recipe = recipe.bounded(len(split.train))
    study = Foresight(open_model(cloud.where, layers=1), heads, recipe, decay)
    report = train.take(study, found, split, recipe, seed, trainer, work, progress) | {"decay": decay}
    _save(study.trained, out / medusa.WEIGHTS)
    accuracies = study.accuracies(found, split.validation)
    header = medusa.Medusa(
        heads, grow(accuracies, candidates), report["parameters"], str(out), made_from=trace.made_from(hidden)
    )
    models = open_models(cloud, cloud, accelerator, Provision(medusa=header))
    asked = _unseen(found, split, workload, decoding, seed, models)
    served = serving_eval.serve(Heads(header), models, asked, seed, progress)
    serving_eval.check(served, "these heads are")
    report |= {"accuracies": accuracies}
    _finish(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def _unseen(
    trace: Trace, split: Split, workload: Workload, decoding: Decoding, seed: int, models: Models
) -> list[Query]:
    """The workload's prompts that nothing was learned from. Raises ValueError where there is none."""
    from serving.deployment.model_loading import queries

    seen = {trace.names[text] for text in (*split.train, *split.validation)}
    asked = [q for q in queries(workload, decoding, seed, 1, models.tokenizer) if q.prompt.id not in seen]
    if not asked:
        raise ValueError("every prompt of workload.profiling was learned from; raise workload.profiling.prompts")
    return asked


def _save(trained: Any, file: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in trained.state_dict().items()}, file)


def _finish(out: Path, header: Any, served: serving_eval.Trial) -> None:
    """The header with what was found when it was served, and metrics.json beside it."""
    report: Mapping[str, Any] = header.metrics
    replace(header, metrics={**report, **served.metrics()}).save(out)
    names = ("parameters", "steps", "best_step", "training_s", "quiet_step_s")
    shown = {name: report[name] for name in names} | {"validation_loss": min(report["validation_losses"])}
    shown |= {f"test_agreement/{i}": share for i, share in enumerate(report["test_agreement"], start=1)}
    (out / "metrics.json").write_text(json.dumps(shown | served.metrics(), indent=1), encoding="utf-8")
