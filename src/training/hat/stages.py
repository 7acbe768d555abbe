"""Stages of HAT's training that configuration names: the trace of hidden states, the adapter, Medusa heads."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.decoding import Decoding
from serving.deployment.prompt_lengths import check_prompts
from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.policy.policy import NO_REQUIREMENTS, EngineRequirements
from serving.policy.slots.draft import MedusaDraft, WindowDraft
from serving.policy.slots.placement import UShapedPlacement
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.held_out import check_prompt_factor, held_out_queries, served_metrics, training_workload
from training.fitting.recipe import HATRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.hat import serving_eval

if TYPE_CHECKING:
    from training.hat.trace import HiddenStateTrace, TextSplit


def check_record_hidden_states(*, cloud: Checkpoint, workload: Workload, prompt_factor: int = 1, **_: object) -> None:
    """Raises ValueError for a `prompt_factor` below 1, and for prompts that are too few or too long."""
    check_prompt_factor(prompt_factor)
    check_prompts(training_workload(workload, prompt_factor), cloud)


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
    work: Path | None = None,
) -> None:
    """Records two hidden states of every token of prompts and of the large model's answers: hidden.safetensors and
    hidden.json.

    One is behind the first `shallow_layers` of the timed architecture's layers, one behind the last layer. The prompts
    are those of `training.fitting.held_out.training_workload`. Raises ValueError for a `prompt_factor` below 1.
    """
    from serving.deployment.model_loading import load_models, make_queries, num_layers
    from serving.outcomes.kept_sessions import kept_in
    from training.hat import trace
    from training.hat.trace import record

    layers = UShapedPlacement(shallow_layers=shallow_layers).device_layers(num_layers(cloud), timed_architecture.layers)
    models = load_models(cloud, cloud, accelerator, replace(NO_REQUIREMENTS, drafter=False))
    queries = make_queries(training_workload(workload, prompt_factor), decoding, seed, 1, models.tokenizer)
    found = record(models, queries, layers, seed, progress, kept_in(work))
    made_from = {
        "model": cloud.display_name,
        "data": f"{workload.dataset.name}, {len(queries)} prompts",
        "layers": f"{layers} of {models.cloud_layers}",
        "seed": str(seed),
    }
    trace.write(out, found, made_from)


def check_train_adapter(*, cloud: Checkpoint, workload: Workload, ce_weight: float = 0.1, **_: object) -> None:
    """Raises ValueError for a weight below 0, and for prompts that are too few or too long."""
    if ce_weight < 0:
        raise ValueError(f"ce_weight is {ce_weight}; the weight of the cross-entropy is 0 or more")
    check_prompts(workload, cloud)


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
    """Distils HAT's adapter from `hidden_trace` (section 3.4, Eq. 4), and serves held-out prompts with it.

    Where the vocabulary is so large that the head is restricted (`loss_tokens`), prompts have no weight in the loss,
    whatever the recipe says. Writes adapter.safetensors, adapter.json and metrics.json. Raises ValueError, with the
    figures, for an adapter with hardly more tokens a round than without drafts.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.torch.model import load_model
    from serving.learned import adapter
    from training.hat import trace, train
    from training.hat.distillation import AdapterDistillation, loss_tokens

    found = trace.read(hidden_trace)
    split = found.split(seed)
    model = load_model(cloud.name_or_path, num_layers=found.shallow_layers + 1)
    recipe, tokens = recipe.limit_epochs(len(split.train)), loss_tokens(found, model.vocab_size)
    if tokens is not None:
        recipe = replace(recipe, prompt_loss_weight=0.0)  # a large head's time goes to answers alone
    module = AdapterDistillation(model, found.shallow_layers, recipe, ce_weight, tokens)
    report = train.train(module, found, split, recipe, seed, trainer, work, progress) | {"ce_weight": ce_weight}
    _save_weights(module.trained_module, out / adapter.WEIGHTS)
    header = adapter.Adapter(found.shallow_layers, report["parameters"], made_from=trace.made_from(hidden_trace))
    header.save(out)
    models = load_models(replace(cloud, quantization="none", adapter=out), cloud, accelerator)
    queries = held_out_queries(_used_prompt_ids(found, split), models, workload, decoding, seed)
    served = serving_eval.evaluate_drafts(draft, models, queries, seed, progress)
    serving_eval.check(served, "this adapter is")
    _write_artifact(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def check_train_medusa(
    *, cloud: Checkpoint, workload: Workload, num_heads: int = 4, tree_candidates: int = 8, head_decay: float = 0.8,
    **_: object,
) -> None:  # fmt: skip
    """Raises ValueError for heads that cannot be trained, for more candidates than their guesses make, and for prompts
    that are too few or too long.
    """
    if num_heads < 1 or not head_decay > 0:
        raise ValueError(
            f"num_heads is {num_heads} and head_decay {head_decay}; give 1 head or more, and a decay above 0"
        )
    most = sum(serving_eval.MAX_RANKS**depth for depth in range(1, num_heads + 1))
    if not 1 <= tree_candidates <= most:
        raise ValueError(f"tree_candidates is {tree_candidates}; num_heads={num_heads} make 1 to {most} candidates")
    check_prompts(workload, cloud)


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
    """Trains Medusa heads on `hidden_trace` (Medusa-1, Cai et al. 2024), builds their candidate tree, and serves
    held-out prompts with them.

    Writes medusa.safetensors, medusa.json and metrics.json. Raises ValueError, with the figures, for heads whose
    proposals are hardly better than none.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.torch.model import load_model
    from serving.learned import medusa
    from training.hat import trace, train
    from training.hat.distillation import MedusaModule, loss_tokens
    from training.hat.serving_eval import build_tree

    found = trace.read(hidden_trace)
    split = found.split(seed)
    recipe = recipe.limit_epochs(len(split.train))
    model = load_model(cloud.name_or_path, num_layers=1)
    module = MedusaModule(model, num_heads, recipe, head_decay, loss_tokens(found, model.vocab_size))
    report = train.train(module, found, split, recipe, seed, trainer, work, progress) | {"head_decay": head_decay}
    heads = module.whole_heads()
    _save_weights(heads, out / medusa.WEIGHTS)
    report["parameters"] = sum(weight.numel() for weight in heads.parameters())
    accuracies = module.rank_accuracies(found, split.validation)
    header = medusa.MedusaHeads(
        num_heads,
        build_tree(accuracies, tree_candidates),
        report["parameters"],
        str(out),
        made_from=trace.made_from(hidden_trace),
    )
    models = load_models(cloud, cloud, accelerator, EngineRequirements(medusa=header))
    queries = held_out_queries(_used_prompt_ids(found, split), models, workload, decoding, seed)
    served = serving_eval.evaluate_drafts(MedusaDraft(header), models, queries, seed, progress)
    serving_eval.check(served, "these heads are")
    report |= {"accuracies": accuracies}
    _write_artifact(out, replace(header, acceptance_length=served.acceptance_length, metrics=report), served)


def _used_prompt_ids(trace: "HiddenStateTrace", split: "TextSplit") -> frozenset[str]:
    return frozenset(trace.prompt_ids[text] for text in (*split.train, *split.validation))


def _save_weights(module: Any, file: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in module.state_dict().items()}, file)


def _write_artifact(out: Path, header: Any, evaluation: serving_eval.DraftEvaluation) -> None:
    """Writes the header with the metrics of training and evaluation, and metrics.json."""
    report: Mapping[str, Any] = header.metrics
    replace(header, metrics={**report, **served_metrics(evaluation)}).save(out)
    names = ("parameters", "steps", "best_step", "training_s", "p10_step_s")
    shown = {name: report[name] for name in names} | {"validation_loss": min(report["validation_losses"])}
    shown |= {f"test_agreement/{i}": share for i, share in enumerate(report["test_agreement"], start=1)}
    (out / "metrics.json").write_text(json.dumps(shown | served_metrics(evaluation), indent=1), encoding="utf-8")
