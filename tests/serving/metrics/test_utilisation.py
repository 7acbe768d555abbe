"""Utilisation and memory of nodes, on three tiers whose work is added up by hand."""

import pytest

from serving.deployment.topology import Topology
from serving.hardware.fleet import GB
from serving.hardware.testbed import Testbed as Bed  # pytest would collect a class named Test...
from serving.hardware.testbed import Tier
from serving.messages import DropCache, ForwardWork, MessageReceived, Release, SequenceSlice
from serving.metrics.recorder import SessionRecord
from serving.metrics.utilisation import UtilisationObserver, covered_s
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.placement import TieredPlacement
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


def ran(seen: UtilisationObserver, node: str, session: str, start: int, n: int, begin_s: float, end_s: float) -> None:
    work = ForwardWork(None, (SequenceSlice(session, start, n, ()),), ("",))  # type: ignore[arg-type]
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
    seen.event_handled("far-0", MessageReceived(Release("a")), 2, ())
    ran(seen, "far-0", "b", 50, 20, 2, 3)
    part = LLAMA.part(16, embedding=False, lm_head=True)
    wanted = (part.weights_nbytes("fp16") + 150 * part.kv_nbytes_per_token("fp16")) / (32 * GB)
    assert seen.by_tier(cast, [record("a", 0, 3)])["far"]["memory_share"] == pytest.approx(wanted)
    first = LLAMA.part(16, embedding=True, lm_head=False).weights_nbytes("fp16") / (16 * GB)
    assert seen.by_tier(cast, [record("a", 0, 3)])["near"]["memory_share"] == pytest.approx(first)


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
