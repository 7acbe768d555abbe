"""What configuration may name as a stage of token routing: trajectories, CITER's router, Co-LLM's deferral."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.decoding import Decoding
from serving.core.scores import ROUTE
from serving.engines.models import Checkpoint
from serving.learned import router as routers
from serving.learned.router import TokenRouter
from serving.policy.policy import EngineRequirements
from serving.policy.slots.offload import NeverOffload, Offload
from serving.policy.slots.routed_offload import RoutedOffload
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.prompts import training_workload
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.routing.citer import CoLLMRecipe
from training.wisp.mlp import MLP

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from training.routing import serving_eval


def record_routes(
    out: Path,
    *,
    progress: Progress,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    router: Path | None = None,
    prompt_factor: int = 1,
    max_comparisons: int = 4,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """Makes one trajectory a prompt, and says in each of its states whose next token is preferred (CITER, section 2.1);
    routes.safetensors and routes.json.

    In the first round, without a `router`, trajectories are the references themselves; later the current policy makes
    them, served by the nodes that serve. Prompts are those of `training.fitting.prompts`, `prompt_factor` as many as
    `workload` has. Where a data set's references are not what a model would write, the large model's own answer is one.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from training.routing.record import TrajectoryRecorder
    from training.routing.serving_eval import routing_policy
    from training.routing.states import write

    current = routers.load(router) if router else None
    models = load_models(device, cloud, accelerator, _engine_requirements(current))
    asked = make_queries(training_workload(workload, prompt_factor), decoding, seed, 1, models.tokenizer)
    offload: Offload = RoutedOffload(current) if current else NeverOffload()
    recorder = TrajectoryRecorder(models, routing_policy(offload), workload.dataset.metrics, seed, max_comparisons)
    states = recorder.record(
        asked, _reference_answers(asked, models, workload, seed, progress), current is None, progress
    )
    made_from = {
        "pair": f"{device.display_name} + {cloud.display_name}",
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
        "trajectories": repr(current) if current else "the references",
        "seed": str(seed),
    }
    write(out, states, made_from)


def train_citer(
    out: Path,
    *,
    progress: Progress,
    routes: tuple[Path, ...],
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    mlp: MLP = MLP(hidden_sizes=(128, 64)),  # noqa: B008
    routed_share: float = 0.07,
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains CITER's router on the preferences of all rounds so far, and serves prompts that it does not know.

    Its threshold routes `routed_share` of held-out states. Writes router.json, router.safetensors, metrics.json. Raises
    ValueError, with the figures, for a router with which answers are certainly worse than without.
    """
    from serving.deployment.model_loading import load_models
    from training.routing import citer
    from training.routing.states import concatenate, made_from, read, split

    _check_share(routed_share)
    rounds = [read(path) for path in routes]
    parts = split(concatenate(rounds).with_preference(), seed)
    found = citer.train(parts, rounds[-1], mlp, routed_share, seed, trainer, progress)
    found = replace(found, made_from={**made_from(routes[-1]), "rounds": str(len(routes))})
    models = load_models(device, cloud, accelerator, _engine_requirements(found))
    asked = _held_out_queries(parts.used_prompt_ids, models, workload, decoding, seed)
    _evaluate_and_save(out, found, models, asked, workload, seed, progress)


def train_co_llm(
    out: Path,
    *,
    progress: Progress,
    routes: Path,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    joint: bool = False,
    recipe: CoLLMRecipe = CoLLMRecipe(),  # noqa: B008
    routed_share: float = 0.07,
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains Co-LLM's deferral on the references (section 2.2), and serves prompts that it does not know.

    With `joint` the small model learns along, and becomes a checkpoint beside the router, in `out`. The threshold eta
    defers `routed_share` of held-out states. Raises ValueError as `train_citer` does.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.tokenizer import Tokenizer
    from training.routing.co_llm import CoLLMTraining
    from training.routing.states import made_from, read, split

    _check_share(routed_share)
    citer = CoLLMTraining(recipe, routed_share, seed, trainer, progress)
    parts = split(read(routes).with_reference(), seed)
    if joint:
        found = citer.train_joint(parts, model := _load_trainable(device), len(Tokenizer(device.name_or_path)))
        _save_model(model, device, out)
        device = replace(device, path=out, hub=None)
    else:
        found = citer.train_frozen(parts)
    found = replace(found, made_from={**made_from(routes), "small model": "trained along" if joint else "frozen"})
    models = load_models(device, cloud, accelerator, _engine_requirements(found))
    asked = _held_out_queries(parts.used_prompt_ids, models, workload, decoding, seed)
    _evaluate_and_save(out, found, models, asked, workload, seed, progress)


def _check_share(routed_share: float) -> None:
    if not 0 < routed_share < 1:
        raise ValueError(
            f"routed_share is {routed_share}; it is the share of tokens that the threshold routes: above 0, below 1"
        )


def _engine_requirements(router: TokenRouter | None) -> EngineRequirements:
    return EngineRequirements({ROUTE: router}) if router else EngineRequirements()


def _reference_answers(
    queries: Sequence[Query], models: LoadedModels, workload: Workload, seed: int, progress: Progress
) -> list[tuple[int, ...]]:
    """Of each prompt the answer that is right token for token, end token included: the embedded pair's tasks have it;
    of others, whose references say what is right and not how a model puts it, the large model's own.
    """
    from serving.outcomes.offline import run_untimed
    from serving.outcomes.record import target_only

    exact = workload.dataset.measures_quality_of == "embedded"
    bare = [query for query in queries if not (exact and any(query.prompt.references))]
    written = run_untimed(target_only(), models, bare, seed, progress) if bare else {}
    found = []
    for query in queries:
        own = written.get(query.request.session)
        found.append(tuple(own.tokens) if own else _encode_reference(query, models.tokenizer))
    return found


def _encode_reference(query: Query, tokenizer: Any) -> tuple[int, ...]:
    """A chat template ends where an answer begins; a plain prompt goes on with a space."""
    text = query.prompt.references[0]
    plain = not tokenizer.hf.chat_template
    ids = tokenizer.hf(f" {text}" if plain else text, add_special_tokens=False)["input_ids"]
    end = tokenizer.hf.eos_token_id
    return (*ids, *(() if end is None else (int(end),)))[: query.request.max_new_tokens]


def _held_out_queries(
    used_prompt_ids: frozenset[str], models: LoadedModels, workload: Workload, decoding: Decoding, seed: int
) -> list[Query]:
    """The workload's prompts that neither the weights nor the threshold were learned from."""
    from serving.deployment.model_loading import make_queries

    return [
        q for q in make_queries(workload, decoding, seed, 1, models.tokenizer) if q.prompt.id not in used_prompt_ids
    ]


def _evaluate_and_save(
    out: Path,
    router: TokenRouter,
    models: LoadedModels,
    queries: Sequence[Query],
    workload: Workload,
    seed: int,
    progress: Progress,
) -> None:
    """Serves the router, and writes it with what was found; refuses one that is worse than none."""
    from training.routing import serving_eval

    served = serving_eval.evaluate_router(router, models, queries, workload.dataset.metrics[0], seed, progress)
    serving_eval.check(served)
    replace(router, metrics={**router.metrics, **served.metrics()}).save(out)
    (out / "metrics.json").write_text(json.dumps(_stage_metrics(router, served), indent=1), encoding="utf-8")


def _stage_metrics(router: TokenRouter, evaluation: serving_eval.RouterEvaluation) -> dict[str, float]:
    test = {f"test/{name}": value for name, value in router.metrics["test"].items() if value is not None}
    return {**test, "threshold": router.threshold, **evaluation.metrics()}


def _load_trainable(checkpoint: Checkpoint) -> Any:
    """The small model as `transformers` trains it. Raises ValueError for one that cannot be trained."""
    import torch
    from transformers import AutoModelForCausalLM

    if checkpoint.quantization != "none" or checkpoint.adapter:
        raise ValueError(
            "joint training changes the small model's weights: set model.device.quantization=none and no adapter, or "
            "policy.artifacts.co_llm.joint=false"
        )
    return AutoModelForCausalLM.from_pretrained(checkpoint.name_or_path, dtype=torch.float32).train()


def _save_model(model: Any, checkpoint: Checkpoint, out: Path) -> None:
    """A whole checkpoint, with the tokenizer that it came with."""
    from transformers import AutoTokenizer

    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint.name_or_path).save_pretrained(out)
