"""The stage of dispatch that configuration names: a graph network, trained in simulation."""

import json
from dataclasses import replace
from pathlib import Path

from serving.progress import Progress
from training.fitting.held_out import served_metrics
from training.fitting.recipe import ReinforceRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.hyperion.environment import DispatchEnvironment


def train_dispatcher(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    environment: DispatchEnvironment,
    recipe: ReinforceRecipe = ReinforceRecipe(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains GPipe's scheduler (Hyperion, section V-A) by policy gradient on random testbeds, and serves held-out
    arrivals with it.

    The paper gives neither architecture nor reward: ours are in `serving.learned.dispatch_network` and
    `training.hyperion.reinforce`. Writes dispatcher.json, dispatcher.safetensors and metrics.json. Raises ValueError,
    with the figures, for a dispatcher that is no better than random nodes.
    """
    from training.hyperion import serving_eval, train

    found = train.train(environment, recipe, seed, trainer, work, progress)
    served = serving_eval.evaluate_dispatcher(
        found, train.sample_episodes(environment, seed, "tested", recipe.test_episodes), progress
    )
    serving_eval.check(served)
    made_from = {
        "model": environment.architecture.name,
        "nodes": ", ".join(chip.name for chip in environment.chips),
        "episodes": f"{recipe.steps * recipe.episodes_per_step} of {environment.tasks_per_episode} tasks, "
        f"each played {recipe.rollouts_per_episode} times",
        "seed": str(seed),
    }
    metrics = served_metrics(served)
    replace(found, metrics={**found.metrics, **metrics}, made_from=made_from).save(out)
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
