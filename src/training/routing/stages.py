"""Stages of token routing that configuration names: trajectories, CITER's router, Co-LLM's deferral."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.decoding import Decoding
from serving.core.scores import NO_SCORERS, by_name
from serving.deployment.prompt_lengths import check_prompts
from serving.engines.models import Checkpoint
from serving.learned import router as routers
from serving.learned.router import TokenRouter
from serving.policy.policy import EngineRequirements
from serving.policy.slots.offload import NeverOffload, Offload
from serving.policy.slots.routed_offload import RoutedOffload
from serving.progress import Progress
from serving.workload.metrics import Metric, Rouge1
from serving.workload.workload import Workload
from training.fitting.held_out import check_prompt_factor, held_out_queries, served_metrics, training_workload
from training.fitting.recipe import CoLLMRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.wisp.mlp import MLP

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from training.routing import serving_eval


def check_record_routes(
    *, device: Checkpoint, cloud: Checkpoint, workload: Workload, prompt_factor: int = 1, max_comparisons: int = 4,
    **_: object,
) -> None:  # fmt: skip
    """Raises ValueError for a data set that cannot be read, is too small, or has no text, for a prompt that is too
    long, and numbers out of range.
    """
    check_prompt_factor(prompt_factor)
    if max_comparisons < 0:
        raise ValueError(f"max_comparisons is {max_comparisons}; give a number of states of each text, 0 or more")
    check_prompts(workload, cloud, device, with_text=True)


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
    work: Path | None = None,
) -> None:
    """Records one trajectory per prompt, with the preferred model in each of its states (CITER, section 2.1):
    routes.safetensors and routes.json.

    In the first round, without a `router`, the trajectories are the references; later the current policy writes them.
    The prompts are those of `training.fitting.held_out.training_workload`. If a data set's references are not what a
    model would write, the large model's own answers are the references; without a metric, too, answers are compared by
    their ROUGE-1 with these.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.outcomes.kept_sessions import kept_in
    from training.routing.record import TrajectoryRecorder
    from training.routing.serving_eval import routing_policy
    from training.routing.states import write

    current = routers.load(router) if router else None
    models = load_models(device, cloud, accelerator, _engine_requirements(current))
    asked = make_queries(training_workload(workload, prompt_factor), decoding, seed, 1, models.tokenizer)
    offload: Offload = RoutedOffload(current) if current else NeverOffload()
    policy, metrics = routing_policy(offload), workload.dataset.metrics
    recorder = TrajectoryRecorder(models, policy, metrics, seed, max_comparisons, work)
    references = _reference_answers(asked, models, workload, seed, progress, kept_in(work, "references"))
    if not workload.dataset.metrics:
        asked = _judged_by(asked, references, models)
    states = recorder.record(asked, references, current is None, progress)
    made_from = {
        "pair": f"{device.display_name} + {cloud.display_name}",
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
        "trajectories": repr(current) if current else "the references",
        "seed": str(seed),
    }
    write(out, states, made_from)


def check_train_citer(*, routed_share: float = 0.07, **_: object) -> None:
    """Raises ValueError for a `routed_share` that is not between 0 and 1."""
    _check_share(routed_share)


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
    """Trains CITER's router on the preferences of all rounds so far, and serves held-out prompts with it.

    Its threshold routes `routed_share` of held-out states. Writes router.json, router.safetensors, metrics.json. Raises
    ValueError, with the figures, for a router whose answers are significantly worse than without it.
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
    asked = held_out_queries(parts.used_prompt_ids, models, workload, decoding, seed)
    _evaluate_and_save(out, found, models, asked, workload, seed, progress)


def check_train_co_llm(*, device: Checkpoint, joint: bool = False, routed_share: float = 0.07, **_: object) -> None:
    """Raises ValueError for a `routed_share` that is not between 0 and 1, and a model that `joint` cannot train."""
    _check_share(routed_share)
    if joint:
        _check_trainable(device)


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
    """Trains Co-LLM's deferral on the references (section 2.2), and serves held-out prompts with it.

    With `joint` the small model is trained too, from the beginning after an interruption, and saved beside the router
    in `out`. The threshold eta defers `routed_share` of held-out states. Raises ValueError as `train_citer` does.
    """
    from serving.deployment.model_loading import load_models
    from serving.engines.tokenizer import Tokenizer
    from training.routing.co_llm import CoLLMTraining
    from training.routing.states import made_from, read, split

    _check_share(routed_share)
    training = CoLLMTraining(recipe, routed_share, seed, trainer, progress)
    parts = split(read(routes).with_reference(), seed)
    if joint:
        found = training.train_joint(parts, model := _load_trainable(device), len(Tokenizer(device.name_or_path)))
        _save_model(model, device, out)
        device = replace(device, path=out, hub=None)
    else:
        found = training.train_frozen(parts)
    found = replace(found, made_from={**made_from(routes), "small model": "trained too" if joint else "frozen"})
    models = load_models(device, cloud, accelerator, _engine_requirements(found))
    asked = held_out_queries(parts.used_prompt_ids, models, workload, decoding, seed)
    _evaluate_and_save(out, found, models, asked, workload, seed, progress)


def _check_share(routed_share: float) -> None:
    if not 0 < routed_share < 1:
        raise ValueError(
            f"routed_share is {routed_share}; it is the share of tokens that the threshold routes: above 0, below 1"
        )


def _engine_requirements(router: TokenRouter | None) -> EngineRequirements:
    return EngineRequirements(by_name([router]) if router else NO_SCORERS)


def _reference_answers(
    queries: Sequence[Query],
    models: LoadedModels,
    workload: Workload,
    seed: int,
    progress: Progress,
    kept: Path | None = None,
) -> list[tuple[int, ...]]:
    """For each prompt the token ids of the right answer, end token included.

    The embedded pair's tasks have it. Other references say what is right but not how a model writes it; there the
    large model's own answer is used.
    """
    from serving.outcomes.record import target_answers

    exact = workload.dataset.measures_quality_of == "embedded"
    without = [query for query in queries if not (exact and any(query.prompt.references))]
    answers = target_answers(models, without, seed, progress, kept) if without else []
    own = {query.request.session: answer for query, answer in zip(without, answers, strict=True)}
    sessions = [query.request.session for query in queries]
    return [
        own[session] if session in own else _encode_reference(query, models.tokenizer)
        for session, query in zip(sessions, queries, strict=True)
    ]


def _encode_reference(query: Query, tokenizer: Any) -> tuple[int, ...]:
    """After a chat template the answer begins at once; after a plain prompt it begins with a space."""
    text = query.prompt.references[0]
    plain = not tokenizer.hf.chat_template
    ids = tokenizer.hf(f" {text}" if plain else text, add_special_tokens=False)["input_ids"]
    end = tokenizer.hf.eos_token_id
    return (*ids, *(() if end is None else (int(end),)))[: query.request.max_new_tokens]


def _judged_by(queries: Sequence[Query], answers: Sequence[tuple[int, ...]], models: LoadedModels) -> list[Query]:
    """The queries with these answers' texts as references."""
    return [
        replace(query, prompt=replace(query.prompt, references=(models.tokenizer.decode(answer),)))
        for query, answer in zip(queries, answers, strict=True)
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
    """Serves the router, raises ValueError if it is worse than none, and writes it with its metrics."""
    from training.routing import serving_eval

    metric: Metric = Rouge1()
    if workload.dataset.metrics:
        metric = workload.dataset.metrics[0]
    else:
        queries = _judged_by(queries, _reference_answers(queries, models, workload, seed, progress), models)
    served = serving_eval.evaluate_router(router, models, queries, metric, seed, progress)
    serving_eval.check(served)
    replace(router, metrics={**router.metrics, **served_metrics(served)}).save(out)
    (out / "metrics.json").write_text(json.dumps(_stage_metrics(router, served), indent=1), encoding="utf-8")


def _stage_metrics(router: TokenRouter, evaluation: serving_eval.RouterEvaluation) -> dict[str, float]:
    test = {f"test/{name}": value for name, value in router.metrics["test"].items() if value is not None}
    return {**test, "threshold": router.threshold, **served_metrics(evaluation)}


def _check_trainable(checkpoint: Checkpoint) -> None:
    if checkpoint.quantization != "none" or checkpoint.adapter:
        raise ValueError(
            "joint training changes the small model's weights: set model.device.quantization=none and no adapter, or "
            "policy.artifacts.co_llm.joint=false"
        )


def _load_trainable(checkpoint: Checkpoint) -> Any:
    """The small model in a form that can be trained. Raises ValueError for a quantised one or one with an adapter."""
    import torch
    from transformers import AutoModelForCausalLM

    _check_trainable(checkpoint)
    return AutoModelForCausalLM.from_pretrained(checkpoint.name_or_path, dtype=torch.float32).train()


def _save_model(model: Any, checkpoint: Checkpoint, out: Path) -> None:
    """Saves a whole checkpoint, with the tokenizer of `checkpoint`."""
    from transformers import AutoTokenizer

    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint.name_or_path).save_pretrained(out)
