"""Which node of a tier takes a request: by table, and over many requests."""

from collections import Counter
from math import inf
from typing import Any

import pytest

from serving.core.keyed_random import key, uniform
from serving.core.queued_request import Task
from serving.messages import LoadReport
from serving.policy.slots.dispatch import (
    Affinity,
    Dispatch,
    EarliestFinish,
    HypSched,
    OwnerDispatch,
    RandomDispatch,
    RoundRobin,
)

TASK = Task("s", num_tokens=11, num_passes=8, max_cached_len=18, choice_index=0, owner="device-0")
"""A prompt of 11 tokens and 8 to write: 10 rows and 8 passes."""


def backlog(node: str, queued_s: float = 0.0, speed: float = 1.0, free: float = inf) -> LoadReport:
    """A node of that speed; of 1 a row takes 10 ms and a pass 100 ms, so that the task takes 0.9 s."""
    return LoadReport(node, queued_s, 0.01 / speed, 0.1 / speed, free)


def test_the_compute_time_of_a_task_counts_its_tokens_and_passes() -> None:
    assert TASK.compute_s(backlog("a")) == pytest.approx(10 * 0.01 + 8 * 0.1)
    assert TASK.compute_s(backlog("a", queued_s=5.0, speed=2.0)) == pytest.approx(0.45)


A, B, C = "a", "b", "c"
FAST = [backlog(A), backlog(B, speed=4.0), backlog(C)]
TABLE: dict[str, tuple[Dispatch, list[LoadReport], str]] = {
    "hypsched: the one that waits least": (HypSched(), [backlog(A, 0.3), backlog(B, 0.1), backlog(C, 0.2)], B),
    "hypsched: the first of equals": (HypSched(), [backlog(A, 0.2), backlog(B, 0.1), backlog(C, 0.1)], B),
    "hypsched: the faster, though it waits longer": (
        HypSched(),
        [backlog(A, 0.0), backlog(B, 0.6, speed=4.0)],  # 0.9 against 0.6 + 0.225
        B,
    ),
    "hypsched: the slower, where the faster waits too long": (
        HypSched(),
        [backlog(A, 0.0), backlog(B, 0.7, speed=4.0)],  # 0.9 against 0.7 + 0.225
        A,
    ),
    "hypsched: not whom it does not fit": (
        HypSched(),
        [backlog(A, 0.0, free=17), backlog(B, 3.0, free=18), backlog(C, 4.0)],
        B,
    ),
    "hypsched: just fits": (HypSched(), [backlog(A, 0.0, free=18), backlog(B, 0.1)], A),
    "hypsched: no node has room: the one with the most": (
        HypSched(),
        [backlog(A, 0.0, free=3), backlog(B, 9.0, free=17), backlog(C, 0.0, free=-40)],
        B,
    ),
    "hypsched: no node has room, all equally little: the first": (
        HypSched(), [backlog(A, 2.0, free=-1), backlog(B, 1.0, free=-1)], A
    ),
    "earliest finish: as HypSched's where all have room": (EarliestFinish(), FAST, B),
    "earliest finish: a node without room too": (EarliestFinish(), [backlog(A, 0.0, free=0), backlog(B, 0.1)], A),
    "earliest finish: the first of equals": (EarliestFinish(), [backlog(A, 0.1), backlog(B, 0.1)], A),
    "affinity: whatever waits there": (Affinity(), [backlog(A, 9.0, free=0), backlog(B), backlog(C)], A),
    "affinity: in whatever order": (Affinity(), [backlog(C), backlog(B), backlog(A)], A),
    "affinity: the next best, where the best is lost": (Affinity(), [backlog(C), backlog(B)], B),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_each_dispatch_chooses_its_node(case: str) -> None:
    dispatch, backlogs, expected = TABLE[case]
    assert dispatch.choose(TASK, backlogs) == expected


def test_equal_nodes_with_room_are_chosen_alike_by_hypsched_and_earliest_finish() -> None:
    for i in range(200):
        waits = [backlog(name, uniform(i, j, "queued")) for j, name in enumerate("abc")]
        assert HypSched().choose(TASK, waits) == EarliestFinish().choose(TASK, waits)


def test_round_robin_takes_the_nodes_in_turn() -> None:
    nodes = [backlog(name, 9.0 * (name == A)) for name in "abc"]
    assert [RoundRobin().choose(TASK._replace(choice_index=i), nodes) for i in range(4, 10)] == [*"bcabca"]


def chances(dispatch: Any, n: int = 3000) -> list[str]:
    nodes = [backlog(name, 9.0 * (name == A), free=0) for name in "abc"]
    return [dispatch.choose(TASK._replace(session=f"s{i}", choice_index=i % 7), nodes) for i in range(n)]


def test_random_dispatch_ignores_load_and_is_uniform() -> None:
    counts = Counter(chances(RandomDispatch(1)))
    assert all(abs(counts[name] - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for name in "abc")


def test_random_dispatch_depends_on_its_seed_only() -> None:
    assert chances(RandomDispatch(1)) == chances(RandomDispatch(1))
    assert chances(RandomDispatch(1)) != chances(RandomDispatch(2))


def test_random_dispatch_is_independent_between_tiers() -> None:
    """Else a session would meet the same number's node everywhere."""
    near, far = ([backlog(f"{tier}-{i}") for i in range(2)] for tier in ("nano", "agx"))
    tasks = [TASK._replace(session=f"s{i}") for i in range(400)]
    same = sum(RandomDispatch(1).choose(t, near)[-1] == RandomDispatch(1).choose(t, far)[-1] for t in tasks)
    assert abs(same - 200) < 60
    assert uniform(key(1, "s0"), 0, "dispatch to nano-0") != uniform(key(1, "s0"), 0, "dispatch to agx-0")


OWNERS = [f"device-{i}" for i in range(10_000)]
NODES = [f"cloud-{i}" for i in range(40)]


def test_affinity_sends_all_tasks_of_an_owner_to_one_node() -> None:
    nodes = [backlog(name) for name in NODES]
    for owner in OWNERS[:100]:
        tasks = [TASK._replace(owner=owner, session=f"s{i}", choice_index=i, num_tokens=9 * i) for i in range(5)]
        assert {Affinity().choose(task, nodes) for task in tasks} == {Affinity().node_of(owner, NODES)}


def test_only_the_owners_of_a_lost_node_go_to_others() -> None:
    before = {owner: Affinity().node_of(owner, NODES) for owner in OWNERS}
    left = [name for name in NODES if name != "cloud-7"]
    after = {owner: Affinity().node_of(owner, left) for owner in OWNERS}
    moved = {owner for owner in OWNERS if before[owner] != after[owner]}
    assert moved == {owner for owner in OWNERS if before[owner] == "cloud-7"}
    assert len({after[owner] for owner in moved}) == 39


@pytest.mark.parametrize(
    ("owners", "nodes", "limit"),
    [  # the chi-square distribution's 0.1 % point for as many degrees of freedom as there are nodes but one
        (OWNERS, NODES, 72.1),
        (OWNERS, ["nano-0", "nano-1", "nano-2"], 13.8),
        ([f"nano-{i}" for i in range(400)], ["agx-0", "agx-1"], 10.8),
    ],
    ids=["devices, 40 nodes", "devices, 3 nodes", "nodes, 2 nodes"],
)
def test_affinity_spreads_owners_evenly(owners: list[str], nodes: list[str], limit: float) -> None:
    counts, expected = Counter(Affinity().node_of(owner, nodes) for owner in owners), len(owners) / len(nodes)
    assert sum((counts[node] - expected) ** 2 / expected for node in nodes) < limit


def test_affinity_is_independent_between_tiers() -> None:
    """Else the nodes of a tier would meet the same number's node everywhere."""
    near, far = ["nano-0", "nano-1"], ["agx-0", "agx-1"]
    node_of = Affinity().node_of
    same = sum(node_of(owner, near)[-1] == node_of(owner, far)[-1] for owner in OWNERS[:400])
    assert abs(same - 200) < 60


def test_affinity_alone_is_a_dispatch_by_owner() -> None:
    others = (HypSched(), EarliestFinish(), RandomDispatch(), RoundRobin())
    assert [isinstance(each, OwnerDispatch) for each in (Affinity(), *others)] == [True, False, False, False, False]


def test_only_hypsched_and_earliest_finish_need_load_reports() -> None:
    each = (HypSched(), EarliestFinish(), RandomDispatch(), RoundRobin(), Affinity())
    assert [one.needs_load_reports for one in each] == [True, True, False, False, False]
