"""The served network equals the trained one; training is repeatable, resumes, learns, and refuses bad results."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from serving.core.queued_request import Task
from serving.learned.dispatch_network import DispatchNetwork, load
from serving.messages import INF, LoadReport
from serving.policy.slots.dispatch import HypSched, LearnedDispatch
from serving.progress import silent
from tests.support.learned_models import earliest_completion_network
from training.fitting.recipe import ReinforceRecipe
from training.fitting.trainer import Trainer
from training.hyperion import reinforce, serving_eval, train
from training.hyperion.environment import DispatchEnvironment
from training.hyperion.reinforce import DispatchAction, TrainableDispatchNetwork, collate
from training.hyperion.stages import train_dispatcher

TOY = ReinforceRecipe(
    hidden_size=4,
    steps=4,
    episodes_per_step=1,
    rollouts_per_episode=2,
    eval_steps=2,
    validation_episodes=1,
    test_episodes=2,
)


@pytest.fixture
def tabula_rasa(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that begins without a rule."""
    monkeypatch.setattr(reinforce, "COMPLETION_WEIGHT", 0.0)
    monkeypatch.setattr(reinforce, "MEMORY_WEIGHT", 0.0)


def test_the_served_network_equals_the_trained_one() -> None:
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    trained = TrainableDispatchNetwork(8)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.normal_()
    choices = [DispatchAction(draw.random(3).tolist(), draw.normal(size=(k, 6)).tolist(), 0) for k in (2, 5, 3)]
    batch = collate(choices)
    with torch.no_grad():
        scores = trained(batch.task_features, batch.node_features, batch.node_mask)
    served = trained.export()
    for row, choice in zip(scores, choices, strict=True):
        k = len(choice.node_features)
        assert row[:k].tolist() == pytest.approx(
            served.scores_from_features(choice.task_features, choice.node_features), rel=1e-4, abs=1e-4
        )
        assert row[k:].tolist() == [-INF] * (5 - k)


@pytest.mark.parametrize("seed", range(5))
def test_training_begins_with_hypsched_s_rule(seed: int) -> None:
    """Episodes in which the first node is clearly the best."""
    torch.manual_seed(seed)
    untrained, task = LearnedDispatch(TrainableDispatchNetwork(16).export()), Task("s", 64, 8, 72, 0)
    waiting = ((3.0, 0.2, 9.0), (5.0, 4.0, 0.5), (0.1, 2.0, 2.0))
    for seconds in waiting:
        for memory in (INF, 90.0):
            nodes = [LoadReport(f"n{i}", each, 0.01, 0.1, memory) for i, each in enumerate(seconds)]
            assert untrained.choose(task, nodes) == HypSched().choose(task, nodes)
            lacking = min(range(3), key=seconds.__getitem__)
            nodes[lacking] = replace(nodes[lacking], free_tokens=10.0)
            assert untrained.choose(task, nodes) == HypSched().choose(task, nodes) != f"n{lacking}"


def test_training_may_begin_with_random_weights() -> None:
    """Which know nothing of a node's queue: some seeds prefer the node that finishes last."""
    task = Task("s", 64, 8, 72, 0)
    nodes = [LoadReport(f"n{i}", each, 0.01, 0.1, INF) for i, each in enumerate((3.0, 0.2, 9.0))]
    chosen = set()
    for seed in range(12):
        torch.manual_seed(seed)
        chosen.add(LearnedDispatch(TrainableDispatchNetwork(16, begins_at_rule=False).export()).choose(task, nodes))
    assert chosen != {HypSched().choose(task, nodes)}


def test_the_recipe_says_what_training_begins_with(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    random = replace(TOY, initial_rule="random")
    found = train.train(world, random, 0, one_thread, fresh("random"), silent)
    assert found.digest != learnt(world, one_thread, fresh("rule")).digest
    assert found.metrics["recipe"]["initial_rule"] == "random"
    with pytest.raises(ValueError, match="initial_rule is 'heft'"):
        replace(TOY, initial_rule="heft")  # type: ignore[arg-type]


def learnt(
    world: DispatchEnvironment, trainer: Trainer, work: Path, progress: Any = silent, seed: int = 0
) -> DispatchNetwork:
    return train.train(world, TOY, seed, trainer, work, progress)


def test_interrupted_training_reaches_the_same_weights(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "SAVE_EVERY_STEPS", 2)

    def stops(done: int, total: int, note: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    whole, work = learnt(world, one_thread, fresh("whole")), fresh("work")
    with pytest.raises(KeyboardInterrupt):
        learnt(world, one_thread, work, stops)
    resumed = learnt(world, one_thread, work)
    assert whole.digest == resumed.digest
    assert whole.metrics["held_out_latencies"] == resumed.metrics["held_out_latencies"]
    assert len(whole.metrics["held_out_latencies"]) == 2


def test_the_mean_of_the_weights_is_evaluated_after_the_last_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two of five steps, each of which adds 1 to every weight."""
    network, evaluated = TrainableDispatchNetwork(4, True), list[float]()

    def latency(dispatch: LearnedDispatch, episodes: Any) -> float:
        assert isinstance(dispatch.dispatcher, DispatchNetwork)
        evaluated.append(float(dispatch.dispatcher.layers["score"][1][0]))
        return 1.0

    monkeypatch.setattr(train, "mean_normalised_latency", latency)
    averaging = train.WeightAveraging(network, [], replace(TOY, steps=5, ema_decay=0.5))
    trainer, module = SimpleNamespace(global_step=0), SimpleNamespace(network=network)
    begin = mean = network.layers["score"].bias.item()  # type: ignore[operator, union-attr]
    means = []
    for step in range(1, 6):
        with torch.no_grad():
            network.layers["score"].bias += 1  # type: ignore[operator]
        trainer.global_step = step
        averaging.on_train_batch_end(trainer, module)  # type: ignore[arg-type]
        decay = min(0.5, step / (step + 10))
        mean = decay * mean + (1 - decay) * (begin + step)
        means.append(mean)
    assert evaluated == pytest.approx([means[1], means[3], means[4]])


def test_the_weight_of_the_entropy_falls_to_the_end(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, loss = list[float](), reinforce.ReinforceModule.loss

    def recorded(self: Any, batch: Any, entropy_weight: float) -> Any:
        weights.append(entropy_weight)
        return loss(self, batch, entropy_weight)

    monkeypatch.setattr(reinforce.ReinforceModule, "loss", recorded)
    train.train(world, replace(TOY, entropy_weight=0.4), 0, one_thread, fresh("work"), silent)
    assert weights == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_tasks_arrive_at_a_share_of_what_the_busiest_tier_can_finish(world: DispatchEnvironment) -> None:
    for i in range(4):
        episode = world.sample_episode(0, f"episode {i}")
        assert 1.0 <= episode.setup.workload.arrivals.rate_per_s / episode.capacity_tasks_per_s <= 2.0  # type: ignore[attr-defined]


def test_another_seed_trains_other_weights(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    one, same, other = (learnt(world, one_thread, fresh(f"{i}"), seed=seed) for i, seed in enumerate((0, 0, 1)))
    assert one.digest == same.digest != other.digest


@pytest.mark.usefixtures("tabula_rasa")
def test_training_learns_to_prefer_the_idle_node(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    """From rewards alone: its scores begin without the rule that it improves on otherwise."""
    recipe = ReinforceRecipe(
        hidden_size=8,
        steps=10,
        episodes_per_step=2,
        rollouts_per_episode=3,
        learning_rate=0.05,
        eval_steps=10,
        validation_episodes=1,
    )
    busy = replace(world, homogeneous_share=1.0, low_memory_share=0.0)
    found = LearnedDispatch(train.train(busy, recipe, 0, one_thread, fresh("work"), silent))
    for idle in range(3):
        nodes = [LoadReport(f"n{i}", 0.0 if i == idle else 6.0, 0.01, 0.5, INF) for i in range(3)]
        assert found.choose(Task("s", 64, 4, 68, 0), nodes) == f"n{idle}"


def test_the_stage_serves_what_it_trained(
    world: DispatchEnvironment, one_thread: Trainer, fresh: Callable[[str], Path]
) -> None:
    out = fresh("out")
    train_dispatcher(out, progress=silent, work=fresh("work"), environment=world, recipe=TOY, trainer=one_thread)
    found, shown = load(out), json.loads((out / "metrics.json").read_text())
    assert shown["served/tasks"] == 2 * 6
    assert shown["served/learned"] < shown["served/random"]
    assert shown == {name: found.metrics[name] for name in shown}
    assert found.made_from["episodes"] == "4 of 6 tasks, each played 2 times"
    assert found.metrics["recipe"]["steps"] == 4


def test_a_dispatcher_that_is_no_better_than_random_nodes_is_refused(world: DispatchEnvironment) -> None:
    episodes = train.sample_episodes(replace(world, homogeneous_share=0.0), 0, "judged", 2)
    good, bad = (
        serving_eval.evaluate_dispatcher(earliest_completion_network(sign), episodes, silent) for sign in (-1.0, 1.0)
    )
    serving_eval.check(good)
    assert good.learned == pytest.approx(good.earliest_finish)
    with pytest.raises(ValueError, match="no better than random nodes") as caught:
        serving_eval.check(bad)
    for figure in (f"{bad.learned:.3f}", f"{bad.random:.3f}", "12 held-out tasks", "recipe.steps"):
        assert figure in str(caught.value)


@pytest.mark.parametrize("wrong", [
    {"hidden_size": 0}, {"steps": 0}, {"rollouts_per_episode": 1}, {"learning_rate": 0.0}, {"discount": 1.0},
    {"ema_decay": -0.1}, {"eval_steps": 0},
])  # fmt: skip
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"recipe.{next(iter(wrong))} must be"):
        ReinforceRecipe(**wrong)
