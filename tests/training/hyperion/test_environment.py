"""Episodes follow the environment's ranges, and rewards come from simulated nodes."""

from dataclasses import replace
from typing import Any

import pytest

from serving.policy.slots.dispatch import HypSched, LearnedDispatch, RandomDispatch
from tests.support.learned_models import earliest_completion_network
from training.hyperion.environment import DispatchEnvironment, Range
from training.hyperion.reinforce import DispatchAction, SampledDispatch, rollouts


def test_the_same_name_draws_the_same_episode(world: DispatchEnvironment) -> None:
    one, same, other = (world.sample_episode(3, name) for name in ("a", "a", "b"))
    assert one.setup == same.setup
    assert (
        one.normalised_latencies(HypSched())
        == same.normalised_latencies(HypSched())
        == one.normalised_latencies(HypSched())
    )
    assert one.setup.hardware != other.setup.hardware


def test_episodes_are_drawn_from_the_world(world: DispatchEnvironment) -> None:
    equal = replace(world, homogeneous_share=1.0, low_memory_share=0.0)
    scarce = replace(world, homogeneous_share=0.0, low_memory_share=1.0, tiers=Range(1, 3), nodes_per_tier=Range(3, 5))
    for name in map(str, range(8)):
        for one, tiers, nodes in (
            (equal.sample_episode(0, name), {2}, {2, 3}),
            (scarce.sample_episode(0, name), {1, 2, 3}, {3, 4, 5}),
        ):
            assert len(one.setup.hardware.tiers) in tiers
            assert {len(tier.node_fleets) for tier in one.setup.hardware.tiers.values()} <= nodes
            assert all(2 <= query.request.max_new_tokens <= 4 for query in one.queries)
            assert len(one.queries) == 6
        kinds = [
            {repr(each.chip) for each in tier.node_fleets}
            for tier in equal.sample_episode(0, name).setup.hardware.tiers.values()
        ]
        assert {len(each) for each in kinds} == {1}
        assert scarce.sample_episode(0, name).setup.policy.kv_cache.capacity_tokens
        assert equal.sample_episode(0, name).setup.policy.kv_cache.capacity_tokens is None


def test_a_task_without_load_takes_its_unloaded_latency(world: DispatchEnvironment) -> None:
    """But for its links, and the cache that it reads."""
    alone = replace(world, offered_load=Range(1e-3, 1e-3), low_memory_share=0.0, homogeneous_share=1.0)
    found = [each for name in "abc" for each in alone.sample_episode(0, name).normalised_latencies(HypSched())]
    assert found == pytest.approx([1.0] * len(found), rel=0.05)
    assert min(found) > 1


def test_more_load_takes_longer(world: DispatchEnvironment) -> None:
    ample = replace(world, low_memory_share=0.0, homogeneous_share=1.0)
    low, high = (
        sum(
            sum(replace(ample, offered_load=Range(load, load)).sample_episode(0, name).normalised_latencies(HypSched()))
            for name in "abc"
        )
        for load in (0.1, 3.0)
    )
    assert high > 1.2 * low


def test_advantages_are_relative_to_the_other_episodes_at_the_same_arrival(world: DispatchEnvironment) -> None:
    """With two plays, what one gained the other lost."""
    episode = world.sample_episode(1, "advantages")
    choices = rollouts(episode, earliest_completion_network(), 2, 0.5)
    gains = sorted({round(each.advantage, 9) for each in choices})
    assert gains[-1] > 0
    assert gains == [-gain for gain in gains[::-1]]
    assert {len(each.node_features) for each in choices} <= {2, 3}
    assert len(choices) >= 2 * 6 * 2
    assert choices == rollouts(episode, earliest_completion_network(), 2, 0.5)


def test_the_return_of_a_choice_includes_later_tasks(
    monkeypatch: pytest.MonkeyPatch, world: DispatchEnvironment
) -> None:
    """Rewards of three arrivals in two plays, by hand: discounted by a half a task, over the mean latency of 2."""
    plays = iter([[1.0, 1.0, 2.0], [2.0, 2.0, 4.0]])
    episode = replace(world, tasks_per_episode=3).sample_episode(0, "by hand")

    def played(drawing: SampledDispatch) -> list[float]:
        drawing.actions = {query.request.session: [DispatchAction([], [], 0)] for query in episode.queries}
        return next(plays)

    monkeypatch.setattr(type(episode), "normalised_latencies", lambda _, drawing: played(drawing))
    found = [each.advantage for each in rollouts(episode, earliest_completion_network(), 2, 0.5)]
    assert found == [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]


def test_the_environment_distinguishes_dispatches(world: DispatchEnvironment) -> None:
    uneven = replace(world, homogeneous_share=0.0, low_memory_share=0.0)
    episodes = [uneven.sample_episode(0, str(i)) for i in range(6)]
    good_mean, bad_mean, random_mean = (
        sum(sum(each.normalised_latencies(dispatch)) for each in episodes)
        for dispatch in (
            LearnedDispatch(earliest_completion_network()),
            LearnedDispatch(earliest_completion_network(1.0)),
            RandomDispatch(),
        )
    )
    assert good_mean < random_mean < bad_mean


@pytest.mark.parametrize(("wrong", "said"), [
    ({"tasks_per_episode": 1}, "2 tasks or more"), ({"nodes_per_tier": Range(1, 3)}, "a tier 2 nodes"),
    ({"chips": ()}, "name the chips"),
    ({"homogeneous_share": 1.2}, "homogeneous_share is 1.2"),
    ({"low_memory_share": -0.1}, "low_memory_share is -0.1"),
])  # fmt: skip
def test_an_impossible_environment_is_refused(world: DispatchEnvironment, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(world, **wrong)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="got 2 to 1"):
        Range(2, 1)
