"""Utilisation, memory and stall times of nodes and devices: by hand, and stall times against a time grid."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.deployment.topology import Topology
from serving.hardware.fleet import GB
from serving.hardware.testbed import Testbed as Bed  # pytest would collect a class named Test...
from serving.hardware.testbed import Tier
from serving.messages import (
    INF,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    DropCache,
    ForwardWork,
    MessageReceived,
    Release,
    SequenceSlice,
    Span,
)
from serving.metrics.recorder import SessionRecord, Timeline
from serving.metrics.utilisation import StallTimes, UtilisationObserver, covered_s, idle_times, stall_times
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.placement import ColocatedPlacement, TieredPlacement
from tests.support.conf_files import architecture, fleet, link
from tests.support.fake_setup import pair, setup

LLAMA = architecture("llama3_8b")
TIERS = {"near": Tier(fleet("jetson_orin_nx_16gb", count=2)), "far": Tier(fleet("jetson_agx_orin_32gb"))}


@pytest.fixture
def cast() -> Topology:
    division = ModelPartition(GPipeSplit(), LLAMA, TIERS, link("lan_1gbps"), 16, 24, include_embed_head=False)
    bed = Bed(device=fleet("jetson_agx_orin_32gb"), tiers=TIERS)
    override = {"placement": TieredPlacement(division), "dispatch": HypSched()}
    return Topology(setup("cloud_centric", bed, 1, override=override, pair=pair(cloud="llama3_8b")), 32)


def tiers() -> Bed:
    return Bed(device=fleet("jetson_agx_orin_32gb"), tiers={"far": Tier(fleet("rtx_a6000"))})


def ran(seen: UtilisationObserver, node: str, session: str, start: int, n: int, begin_s: float, end_s: float) -> None:
    work = ForwardWork(Span(0, 8), (SequenceSlice(session, start, n, ()),), ("",))
    seen.work_done(node, work, (), begin_s, end_s)


def record(session: str, arrived_s: float, ended_s: float | None) -> SessionRecord:
    return SessionRecord(session, "device-0", 16, arrived_s, ended_s=ended_s)


def test_busy_is_a_share_of_the_time_in_which_anything_was_under_way(cast: Topology) -> None:
    seen = UtilisationObserver()
    ran(seen, "near-0", "a", 0, 16, 0.0, 1.0)
    ran(seen, "near-1", "b", 0, 16, 2.0, 2.5)
    ran(seen, "far-0", "a", 0, 16, 1.0, 3.0)
    found = seen.by_tier(cast, [record("a", 0.0, 4.0), record("b", 2.0, 3.0), record("c", 10.0, 12.0)])
    assert found["near"]["utilisation"] == pytest.approx(1.5 / 2 / 6)
    assert found["far"]["utilisation"] == pytest.approx(2 / 6)
    assert (found["near"]["nodes"], found["far"]["nodes"]) == (2, 1)
    assert (found["near"]["blocks"], found["far"]["blocks"]) == (16, 16)


def test_memory_is_weights_and_the_fullest_caches(cast: Topology) -> None:
    seen = UtilisationObserver()
    ran(seen, "far-0", "a", 0, 100, 0, 1)
    ran(seen, "far-0", "b", 0, 50, 1, 2)
    seen.event_handled("far-0", MessageReceived(Release("a")), 2, (DropCache("a", 16),))
    ran(seen, "far-0", "b", 50, 20, 2, 3)
    part = LLAMA.part(16, embedding=False, lm_head=True)
    wanted = (part.weights_nbytes("fp16") + 150 * part.kv_nbytes_per_token("fp16")) / (32 * GB)
    assert seen.by_tier(cast, [record("a", 0, 3)])["far"]["memory_share"] == pytest.approx(wanted)
    first = LLAMA.part(16, embedding=True, lm_head=False).weights_nbytes("fp16") / (16 * GB)
    assert seen.by_tier(cast, [record("a", 0, 3)])["near"]["memory_share"] == pytest.approx(first)


def test_a_cache_that_goes_on_holds_what_was_before(cast: Topology) -> None:
    seen = UtilisationObserver()
    ran(seen, "far-0", "a", 0, 100, 0, 1)
    ran(seen, "far-0", "a", 100, 50, 1, 2)
    part = LLAMA.part(16, embedding=False, lm_head=True)
    wanted = (part.weights_nbytes("fp16") + 150 * part.kv_nbytes_per_token("fp16")) / (32 * GB)
    assert seen.by_tier(cast, [record("a", 0, 2)])["far"]["memory_share"] == pytest.approx(wanted)


def test_a_drafter_beside_the_target_counts_with_its_weights_and_caches() -> None:
    topology = Topology(setup("sled", tiers(), 1, override={"placement": ColocatedPlacement("far")}), 32)
    seen = UtilisationObserver()
    ran(seen, "far-0", "a", 0, 100, 0, 1)
    outcome = DraftOutcome((1, 2), {}, ((1,), (2,)), False, 90)
    seen.work_done("far-0", DraftWork("a", 0, (7,) * 89, DraftStopRule(2)), outcome, 1, 2)
    seen.event_handled("far-0", MessageReceived(Release("a")), 2, (DropCache("a", 0), DropCache("a", None)))
    seen.work_done("far-0", DraftWork("b", 0, (7,) * 10, DraftStopRule(2)), replace(outcome, cached_len=11), 3, 4)
    held = [
        model.weights_nbytes("fp16") + tokens * model.kv_nbytes_per_token("fp16")
        for model, tokens in ((architecture("llama2_13b"), 100), (architecture("tinyllama_1_1b"), 90))
    ]
    share = seen.by_tier(topology, [record("a", 0, 3)])["far"]["memory_share"]
    assert share == pytest.approx(sum(held) / (48 * GB))


def test_dropped_caches_and_those_of_a_restarted_node_are_not_held(cast: Topology) -> None:
    seen = UtilisationObserver()
    ran(seen, "far-0", "a", 0, 100, 0, 1)
    seen.event_handled("far-0", MessageReceived(Release("b")), 1, (DropCache("a", 16),))
    ran(seen, "far-0", "b", 0, 60, 1, 2)
    seen.node_created("far-0", 3.0)
    ran(seen, "far-0", "c", 0, 70, 4, 5)
    assert seen.peak_cache_tokens["far-0"] == 100


def test_rolled_back_tokens_are_not_counted_twice(cast: Topology) -> None:
    seen = UtilisationObserver()
    ran(seen, "far-0", "a", 0, 10, 0, 1)
    ran(seen, "far-0", "a", 6, 4, 1, 2)
    assert seen.peak_cache_tokens["far-0"] == 10


def test_without_a_finished_request_the_utilisation_is_unknown(cast: Topology) -> None:
    assert "utilisation" not in UtilisationObserver().by_tier(cast, [record("a", 0, None)])["near"]


def test_overlapping_busy_intervals_count_once() -> None:
    assert covered_s([(0, 2), (1, 3), (5, 6), (5.5, None)]) == 4
    assert covered_s([]) == 0


Line = list[tuple[str, float, float, int]]


def stalls(line: Line, ended_s: float = INF) -> StallTimes:
    return stall_times(Timeline(line), ended_s)


ROUND: Line = [
    ("draft", 0, 4, 4),
    ("uplink", 4, 6, 120),
    ("queue", 6, 7, 8),
    ("verify", 7, 10, 8),
    ("downlink", 10, 11, 20),
    ("draft", 11, 13, 2),
]
"""A vanilla round: the device waits from 4 to 11."""
OWN, CLOUD, LINK = {"draft", "device_layers"}, {"queue", "prefill", "verify", "decode"}, {"uplink", "downlink"}
LANES = sorted(OWN | CLOUD | LINK)


def session(name: str, began_s: float, ended_s: float, busy_s: float) -> SessionRecord:
    made = SessionRecord(name, "device-0", 1, 0.0)
    made.started_s, made.ended_s, made.device_busy_s = began_s, ended_s, busy_s
    return made


def test_one_session_after_the_other_waits_for_what_it_is_not_busy() -> None:
    assert idle_times([session("a", 1, 11, 4), session("b", 11, 16, 5)]) == {"a": 6, "b": 0}


def test_sessions_at_the_same_time_share_the_seconds_in_which_the_chip_waits() -> None:
    """Two sessions are open for the same 10 s; the chip works for 5 s and 3 s of them, so that it waits for 2 s."""
    found = idle_times([session("a", 0, 10, 5), session("b", 0, 10, 3)])
    assert sum(found.values()) == pytest.approx(2)
    assert found["a"] / found["b"] == pytest.approx(5 / 7)
    assert idle_times([session("a", 0, 10, 5), session("b", 0, 10, 5)]) == {"a": 0, "b": 0}


def test_a_session_that_never_began_waits_for_nothing() -> None:
    made = SessionRecord("a", "device-0", 1, 3.0)
    assert idle_times([made]) == {"a": 0}


def test_an_empty_timeline_has_no_stalls() -> None:
    assert stalls([]) == (0, 0, 0)


def test_a_device_alone_never_stalls() -> None:
    assert stalls([("draft", 0, 4, 4), ("draft", 5, 9, 4)]) == (0, 0, 0)


def test_one_round_waits_for_both_ways_of_the_link_and_for_queue_and_verification() -> None:
    assert stalls(ROUND) == StallTimes(link_s=2 + 1, cloud_s=1 + 3, cloud_residence_s=4)


def test_stall_times_of_rounds_add_up() -> None:
    later: Line = [(lane, begin + 20, end + 20, n) for lane, begin, end, n in ROUND]
    assert stalls([*ROUND, *later]) == (6, 8, 8)


def test_the_order_of_timeline_entries_does_not_change_stalls() -> None:
    assert stalls(ROUND[::-1]) == stalls(ROUND)


def test_lookahead_hides_stalls_but_not_the_cloud_residence() -> None:
    ahead: Line = [("draft", 4, 5, 1), ("draft", 5, 8, 2)]
    assert stalls([*ROUND, *ahead]) == StallTimes(link_s=1, cloud_s=2, cloud_residence_s=4)
    assert stalls([*ROUND, ("draft", 4, 12, 3)]) == (0, 0, 4)


def test_drafting_on_in_the_middle_of_a_wait_leaves_both_its_ends() -> None:
    assert stalls([("verify", 0, 10, 8), ("draft", 2, 3, 1), ("draft", 5, 6, 1)]) == (0, 8, 10)


def test_overlapping_link_and_cloud_time_counts_as_cloud() -> None:
    parts: Line = [("uplink", 0, 4, 64), ("uplink", 4, 8, 64), ("prefill", 4, 6, 32), ("prefill", 8, 10, 32)]
    assert stalls(parts) == StallTimes(link_s=4 + 2, cloud_s=2 + 2, cloud_residence_s=4)


def test_work_at_the_same_time_counts_once() -> None:
    assert stalls([("prefill", 0, 5, 32), ("verify", 3, 7, 8), ("uplink", 8, 9, 10), ("uplink", 8, 10, 10)]) == (
        2,
        7,
        7,
    )


@pytest.mark.parametrize("lane", ["queue", "prefill", "verify", "decode"])
def test_every_kind_of_work_in_the_cloud_is_waited_for(lane: str) -> None:
    assert stalls([(lane, 1, 3, 1)]) == (0, 2, 2)


def test_messages_after_the_end_cause_no_stall() -> None:
    release: Line = [("uplink", 13, 16, 16)]
    assert stalls([*ROUND, *release], ended_s=13) == stalls(ROUND)


def test_a_stall_cut_by_the_end_counts_up_to_it() -> None:
    assert stalls(ROUND, ended_s=8.5) == StallTimes(link_s=2, cloud_s=2.5, cloud_residence_s=2.5)


pieces = st.tuples(st.sampled_from(LANES), st.integers(0, 30), st.integers(0, 8)).map(
    lambda piece: (piece[0], float(piece[1]), float(piece[1] + piece[2]), 1)
)


def by_the_grid(line: Line, ended_s: float) -> tuple[int, int, int]:
    """The stall times, counted second by second."""
    link = cloud = resident = 0
    for second in range(40):
        busy = {lane for lane, begin, end, _ in line if begin <= second < min(end, ended_s)}
        resident += bool(busy & CLOUD)
        cloud += bool(busy & CLOUD) and not busy & OWN
        link += bool(busy & LINK) and not busy & (OWN | CLOUD)
    return link, cloud, resident


@given(st.lists(pieces, max_size=20), st.one_of(st.integers(0, 40), st.just(math.inf)))
def test_stall_times_equal_a_count_on_a_time_grid(line: Line, ended_s: float) -> None:
    assert stalls(line, ended_s) == by_the_grid(line, ended_s)
