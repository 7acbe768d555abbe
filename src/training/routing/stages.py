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
from serving.learned.router import Router
from serving.policy.engine_requirements import Provision
from serving.policy.slots.offload import Never, Offload
from serving.policy.slots.routed_offload import Routed
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.prompts import taught
from training.fitting.trainer import ALL_CORES, Trainer
from training.routing.citer import Recipe
from training.wisp.mlp import MLP

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query
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
    times: int = 1,
    forks: int = 4,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """Makes one trajectory a prompt, and says in each of its states whose next token is preferred (CITER, section 2.1);
    routes.safetensors and routes.json.

    In the first round, without a `router`, trajectories are the references themselves; later the current policy makes
    them, served by the nodes that serve. Prompts are those of `training.fitting.prompts`, `times` as many as `workload`
    has. Where a data set's references are not what a model would write, the large model's own answer is one.
    """
    from serving.deployment.model_loading import open_models, queries
    from training.routing.record import Recorder
    from training.routing.serving_eval import routing
    from training.routing.states import write

    current = routers.load(router) if router else None
    models = open_models(device, cloud, accelerator, _provision(current))
    asked = queries(taught(workload, times), decoding, seed, 1, models.tokenizer)
    offload: Offload = Routed(current) if current else Never()
    recorder = Recorder(models, routing(offload), workload.dataset.metrics, seed, forks)
    states = recorder.take(asked, _references(asked, models, workload, seed, progress), current is None, progress)
    made_from = {
        "pair": f"{device.named} + {cloud.named}",
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
    mlp: MLP = MLP(hidden=(128, 64)),  # noqa: B008
    share: float = 0.07,
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = ALL_CORES,
) -> None:
    """Trains CITER's router on the preferences of all rounds so far, and serves prompts that it does not know.

    Its threshold routes `share` of held-out states. Writes router.json, router.safetensors, metrics.json. Raises
    ValueError, with the figures, for a router with which answers are certainly worse than without.
    """
    from serving.deployment.model_loading import open_models
    from training.routing import citer
    from training.routing.states import joined, made_from, read, split

    _check_share(share)
    rounds = [read(path) for path in routes]
    parts = split(joined(rounds).judged(), seed)
    found = citer.train(parts, rounds[-1], mlp, share, seed, trainer, progress)
    found = replace(found, made_from={**made_from(routes[-1]), "rounds": str(len(routes))})
    models = open_models(device, cloud, accelerator, _provision(found))
    asked = _unseen(parts.learned, models, workload, decoding, seed)
    _finish(out, found, models, asked, workload, seed, progress)


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
    recipe: Recipe = Recipe(),  # noqa: B008
    share: float = 0.07,
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = ALL_CORES,
) -> None:
    """Trains Co-LLM's deferral on the references (section 2.2), and serves prompts that it does not know.

    With `joint` the small model learns along, and becomes a checkpoint beside the router, in `out`. The threshold eta
    defers `share` of held-out states. Raises ValueError as `train_citer` does.
    """
    from serving.deployment.model_loading import open_models
    from serving.engines.tokenizer import Tokenizer
    from training.routing.co_llm import Course
    from training.routing.states import made_from, read, split

    _check_share(share)
    citer = Course(recipe, share, seed, trainer, progress)
    parts = split(read(routes).known(), seed)
    if joint:
        found = citer.joint(parts, model := _trainable(device), len(Tokenizer(device.where)))
        _save_model(model, device, out)
        device = replace(device, path=out, hub=None)
    else:
        found = citer.frozen(parts)
    found = replace(found, made_from={**made_from(routes), "small model": "trained along" if joint else "frozen"})
    models = open_models(device, cloud, accelerator, _provision(found))
    asked = _unseen(parts.learned, models, workload, decoding, seed)
    _finish(out, found, models, asked, workload, seed, progress)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share is {share}; it is the share of tokens that the threshold routes: above 0, below 1")


def _provision(router: Router | None) -> Provision:
    return Provision({ROUTE: router}) if router else Provision()


def _references(
    asked: Sequence[Query], models: Models, workload: Workload, seed: int, progress: Progress
) -> list[tuple[int, ...]]:
    """Of each prompt the answer that is right token for token, end token included: the embedded pair's tasks have it;
    of others, whose references say what is right and not how a model puts it, the large model's own.
    """
    from serving.outcomes.offline import play
    from serving.outcomes.record import target_alone

    exact = workload.dataset.measures_quality_of == "embedded"
    bare = [query for query in asked if not (exact and any(query.prompt.references))]
    written = play(target_alone(), models, bare, seed, progress) if bare else {}
    found = []
    for query in asked:
        own = written.get(query.call.session)
        found.append(tuple(own.tokens) if own else _encoded(query, models.tokenizer))
    return found


def _encoded(query: Query, tokenizer: Any) -> tuple[int, ...]:
    """A chat template ends where an answer begins; a plain prompt goes on with a space."""
    text = query.prompt.references[0]
    plain = not tokenizer.hf.chat_template
    ids = tokenizer.hf(f" {text}" if plain else text, add_special_tokens=False)["input_ids"]
    end = tokenizer.hf.eos_token_id
    return (*ids, *(() if end is None else (int(end),)))[: query.call.limit]


def _unseen(learned: frozenset[str], models: Models, workload: Workload, decoding: Decoding, seed: int) -> list[Query]:
    """The workload's prompts that neither the weights nor the threshold were learned from."""
    from serving.deployment.model_loading import queries

    return [q for q in queries(workload, decoding, seed, 1, models.tokenizer) if q.prompt.id not in learned]


def _finish(
    out: Path, found: Router, models: Models, asked: Sequence[Query], workload: Workload, seed: int, progress: Progress
) -> None:
    """Serves the router, and writes it with what was found; refuses one that is worse than none."""
    from training.routing import serving_eval

    served = serving_eval.serve(found, models, asked, workload.dataset.metrics[0], seed, progress)
    serving_eval.check(served)
    replace(found, metrics={**found.metrics, **served.metrics()}).save(out)
    (out / "metrics.json").write_text(json.dumps(_shown(found, served), indent=1), encoding="utf-8")


def _shown(found: Router, served: serving_eval.Trial) -> dict[str, float]:
    test = {f"test/{name}": value for name, value in found.metrics["test"].items() if value is not None}
    return {**test, "threshold": found.threshold, **served.metrics()}


def _trainable(checkpoint: Checkpoint) -> Any:
    """The small model as `transformers` trains it. Raises ValueError for one that cannot be trained."""
    import torch
    from transformers import AutoModelForCausalLM

    if checkpoint.quantization != "none" or checkpoint.adapter:
        raise ValueError(
            "joint training changes the small model's weights: set model.device.quantization=none and no adapter, or "
            "policy.artifacts.co_llm.joint=false"
        )
    return AutoModelForCausalLM.from_pretrained(checkpoint.where, dtype=torch.float32).train()


def _save_model(model: Any, checkpoint: Checkpoint, out: Path) -> None:
    """A whole checkpoint, with the tokenizer that it came with."""
    from transformers import AutoTokenizer

    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint.where).save_pretrained(out)
