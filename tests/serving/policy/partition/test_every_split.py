"""Each strategy against every split there is, on random small instances."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.policy.partition.baselines import FillOrder, GPipeSplit, GreedySplit, block_work
from serving.policy.partition.hypsplit import HypSplit, tau_bounds_s
from serving.policy.partition.optimum import OptimalSplit
from serving.policy.partition.problem import PartitionProblem, PartitionStrategy
from tests.serving.policy.partition.exhaustive_search import PROBLEMS, Found, every

many = settings(max_examples=500, deadline=None)


def chosen(split: PartitionStrategy, problem: PartitionProblem, splits: list[Found]) -> Found | None:
    """The split that the strategy chose among all; None if it refused, with the tier, because there is none."""
    if not splits:
        with pytest.raises(ValueError, match=r"^partition: ") as refused:
            split.solve(problem)
        assert any(f"{tier} " in str(refused.value) or f"({tier}" in str(refused.value) for tier in problem.tiers)
        return None
    return {each.ends: each for each in splits}[split.solve(problem)]


@many
@given(PROBLEMS, st.sampled_from([1e-3, 0.1, 1.0, 50.0]))
def test_hypsplit_is_within_epsilon_of_the_least_slowest_stage(problem: PartitionProblem, epsilon_s: float) -> None:
    splits = every(problem)
    found = chosen(HypSplit(epsilon_s), problem, splits)
    if found:
        least_s = min(each.slowest_s for each in splits)
        assert least_s <= found.slowest_s <= least_s + epsilon_s
        low_s, high_s = tau_bounds_s(problem)
        assert low_s <= least_s
        assert max(each.slowest_s for each in splits) <= high_s


def fastest(splits: list[Found]) -> Found:
    return min(splits, key=lambda each: (each.lone_s, each.bottleneck_s))


def busiest(splits: list[Found]) -> Found:
    return min(splits, key=lambda each: (each.bottleneck_s, each.lone_s))


@many
@given(PROBLEMS)
def test_the_optimum_is_exact_in_both_objectives_and_breaks_ties_by_the_other(problem: PartitionProblem) -> None:
    splits = every(problem, empty=True)
    for objective, best in (("latency", fastest), ("throughput", busiest)):
        found = chosen(OptimalSplit(objective), problem, splits)  # type: ignore[arg-type]
        if found:
            wanted = best(splits)
            assert (found.lone_s, found.bottleneck_s) == (wanted.lone_s, wanted.bottleneck_s)
            assert found.lone_s == problem.single_request_s(found.ends)
            assert found.bottleneck_s == problem.bottleneck_s(found.ends)


@many
@given(PROBLEMS, st.sampled_from([0.05, 0.25, 0.5, 2.0]), st.sampled_from([0.5, 0.9, 1.0]))
def test_a_required_rate_is_met_or_refused_with_the_best_possible(
    problem: PartitionProblem, rate: float, busy: float
) -> None:
    splits = every(problem, empty=True)
    keeping_up = [each for each in splits if each.bottleneck_s <= busy / rate]
    for objective, best in (("latency", fastest), ("throughput", busiest)):
        split = OptimalSplit(objective, rate_per_s=rate, max_utilisation=busy)  # type: ignore[arg-type]
        if keeping_up:
            found, wanted = chosen(split, problem, splits), best(keeping_up)
            assert found
            assert (found.lone_s, found.bottleneck_s) == (wanted.lone_s, wanted.bottleneck_s)
        elif splits:
            carried = busy / busiest(splits).bottleneck_s
            with pytest.raises(ValueError, match=rf"carries {carried:.4g} requests a second: [abcd] then takes"):
                split.solve(problem)


@many
@given(PROBLEMS, st.sampled_from(["fastest", "front"]))
def test_greedy_gives_each_tier_the_most_blocks_that_leave_one_for_the_others(
    problem: PartitionProblem, fill: FillOrder
) -> None:
    splits = every(problem)
    split = GreedySplit(fill)
    order = split.tier_order(problem)
    found = chosen(split, problem, splits)
    if found:
        assert found.counts == max((each.counts for each in splits), key=lambda counts: [counts[j] for j in order])
    paces = [sum(row) for row in problem.block_s]
    assert order == (list(range(len(order))) if fill == "front" else sorted(range(len(order)), key=paces.__getitem__))


@many
@given(PROBLEMS)
@example(PartitionProblem(("a", "b", "c"), ((0.1,) * 8,) * 3, ((1.0,) * 8,) * 3, (9.0,) * 3, (1,) * 3))
@example(
    PartitionProblem(("a", "b", "c"), ((7.0, 5.0, 2.0, 9.0, 4.0),) * 3, ((1.0,) * 5,) * 3, (5.0, 2.0, 2.0), (1,) * 3)
)
def test_balanced_stages_are_as_equal_as_memory_allows(problem: PartitionProblem) -> None:
    splits, work = every(problem), block_work(problem)
    found = chosen(GPipeSplit(), problem, splits)

    def unequal(each: Found) -> tuple[object, ...]:
        stages = [sum(work[end - count : end]) for end, count in zip(each.ends, each.counts, strict=True)]
        return max(stages), sum(stage**2 for stage in stages), each.ends[::-1]

    if found:
        assert found == min(splits, key=unequal)


@pytest.mark.parametrize("split", [HypSplit(), OptimalSplit(), OptimalSplit("throughput"), GreedySplit(), GPipeSplit()])
def test_one_tier_has_all_blocks(split: PartitionStrategy) -> None:
    assert split.solve(PartitionProblem(("cloud",), ((1.0, 2.0),), ((1.0, 1.0),), (2.0,), (1,))) == (2,)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HypSplit(0.0), "epsilon_s is 0.0; it must be more than 0 seconds"),
        (lambda: HypSplit(float("inf")), "epsilon_s is inf; it must be more than 0 seconds"),
        (lambda: GreedySplit("back"), "fill_order is 'back'; use fastest or front"),
        (lambda: OptimalSplit("speed"), "objective is 'speed'; use latency or throughput"),
        (lambda: OptimalSplit(rate_per_s=0.0), "rate_per_s is 0.0; it must be more than 0, or null"),
        (lambda: OptimalSplit(max_utilisation=1.5), "max_utilisation is 1.5; it is a share of the time"),
    ],
)
def test_strategy_options_out_of_range_are_refused(make: Callable[[], PartitionStrategy], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
