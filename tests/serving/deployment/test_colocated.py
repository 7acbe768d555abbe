"""A cloud that drafts, from its setup: engines and chips of its nodes, their estimators, where time comes from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory
from serving.frontend.health import CloudStats
from serving.hardware.testbed import Testbed as Bed
from serving.hardware.testbed import Tier
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from serving.nodes.speculator import Speculator
from serving.policy.slots.draft import GoodputDraft, WindowDraft
from serving.policy.slots.kv_cache import SharedPrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.runtimes.emulated import Emulated, simulate
from serving.runtimes.run_results import write_results
from serving.runtimes.runtime import RunResult
from tests.support.conf_files import fleet
from tests.support.fake_pair import LAYERS, FakePair
from tests.support.fake_setup import FakeEngine, Words, models, queries, setup

DRAFT = DraftWork("a", 0, (7, 8, 9), DraftStopRule(1))
WHOLE = Span(0, LAYERS, embedding=True, lm_head=True)


def colocated(nodes: int = 1, **override: Any) -> Setup:
    bed = Bed(device=fleet("jetson_agx_orin_32gb"), tiers={"far": Tier(fleet("rtx_a6000", count=nodes))})
    return setup("sled", bed, override={"placement": ColocatedPlacement("far")} | override)


def pairs(found: LoadedModels) -> tuple[list[FakePair], LoadedModels]:
    """The models, whose further engines are collected."""
    made: list[FakePair] = []

    def new_engine() -> FakeEngine:
        made.append(FakePair())
        return FakeEngine(made[-1])

    return made, replace(found, new_cloud_engine=new_engine, new_device_engine=new_engine)


def test_shared_prefixes_want_a_draft_model_whose_caches_are_copied() -> None:
    made = colocated(kv_cache=SharedPrefixCaching())
    device = replace(made.pair.device, backend="onnx", graph="graph")
    with pytest.raises(ValueError, match="which onnx does not; choose policy/kv_cache=reuse"):
        replace(made, pair=replace(made.pair, device=device))


def test_each_node_has_caches_of_its_own_for_the_drafter_too() -> None:
    further, found = pairs(models())
    topology = Topology(colocated(nodes=2), LAYERS)
    chips = ChipFactory(topology, found, ())
    first, second = (chips(name) for name in topology.workers)
    first.executor.execute(DRAFT)
    second.executor.execute(DRAFT)
    second.executor.drop("a", None)
    assert isinstance(found.device, FakeEngine)
    assert set(found.device.pair.caches) == {("a", None)}
    assert [set(pair.caches) for pair in further] == [set(), set()]


def test_a_users_device_frees_nothing_of_the_clouds_drafter() -> None:
    found, topology = models(), Topology(colocated(), LAYERS)
    chips = ChipFactory(topology, found, queries(2))
    cloud, device = chips("far-0"), chips("device-0")
    cloud.executor.execute(DRAFT)
    device.executor.drop("a", None)
    assert isinstance(found.device, FakeEngine)
    assert ("a", None) in found.device.pair.caches


def test_rounds_are_predicted_as_they_are_charged() -> None:
    """The node's profile is that of both models on its chip."""
    topology = Topology(colocated(draft=GoodputDraft(8)), LAYERS)
    node = topology.create_node("far-0")
    assert isinstance(node, Speculator)
    timing = node.device.round_timing
    assert timing is not None
    timing.update([100])
    chip = ChipFactory(topology, models(), ())("far-0").executor
    chip.execute(ForwardWork(WHOLE, (SequenceSlice("a", 0, 100, (7,) * 100, 0, ""),), ("",)))
    chip.execute(DraftWork("a", 0, (7,) * 100, DraftStopRule(0)))
    _, verification_s = chip.execute(ForwardWork(WHOLE, (SequenceSlice("a", 100, 3, (7,) * 3, 2, "greedy"),), ("",)))
    _, step_s = chip.execute(DraftWork("a", 100, (7,), DraftStopRule(1)))
    assert timing.round_s(2, 2.0) == pytest.approx(2 * step_s + verification_s, rel=0.02)


def test_only_a_slot_that_weighs_drafts_predicts_rounds() -> None:
    node = Topology(colocated(draft=WindowDraft(4)), LAYERS).create_node("far-0")
    assert isinstance(node, Speculator)
    assert node.device.round_timing is None


def test_a_served_node_reports_its_queue_and_sessions() -> None:
    node = Topology(colocated(), LAYERS).create_node("far-0")
    assert isinstance(node, Speculator)
    stats = CloudStats(node.worker)
    assert (stats.queue_len, stats.sessions, node.is_idle) == (0, 0, True)


def test_the_results_say_where_the_drafters_time_comes_from(tmp_path: Path) -> None:
    made, asked = colocated(), queries(3)
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    timing = json.loads((tmp_path / "meta.json").read_text())["timing"]
    assert set(timing) == {"cloud"}
    assert "llama2_13b" in timing["cloud"]
    assert "tinyllama_1_1b" in timing["cloud"]
    origins = {origin for record in records.values() for origin in record.origins}
    assert "cloud_accepted" in origins
    assert all(record.drafted >= record.origins.count("cloud_accepted") > 0 for record in records.values())


def apart(memory_gb: float | None = None) -> Setup:
    made = colocated(placement=ColocatedPlacement("far", drafter="apart"))
    if memory_gb is None:
        return made
    (fleet,) = made.hardware.tiers["far"].fleets
    small = replace(fleet, chip=replace(fleet.chip, memory_gb=memory_gb))
    return replace(made, hardware=replace(made.hardware, tiers={"far": Tier(small)}))


def test_with_chips_of_its_own_the_drafter_takes_no_memory_of_the_target() -> None:
    """A chip that holds the target, and not both, is enough, and holds more caches."""
    assert Topology(apart(26.3), LAYERS).tiers == {"far": ("far-0",)}
    with pytest.raises(ValueError, match="llama2_13b with tinyllama_1_1b does not fit"):
        replace(apart(26.3), policy=replace(apart().policy, placement=ColocatedPlacement("far")))
    assert apart().cloud_cache_tokens > colocated().cloud_cache_tokens


def test_a_draft_model_with_larger_caches_bounds_how_many_its_own_chips_hold() -> None:
    made = apart()
    small = made.pair.device.timed_architecture
    wide = replace(small, kv_heads=small.heads, layers=8 * small.layers)
    pair = replace(made.pair, device=replace(made.pair.device, timed_architecture=wide))
    assert replace(made, pair=pair).cloud_cache_tokens < made.cloud_cache_tokens


def test_both_sets_of_chips_are_the_nodes_whose_use_is_reported(tmp_path: Path) -> None:
    made, asked = apart(), queries(3)
    records = simulate(made, models(), asked)
    write_results(tmp_path, made, Emulated(), RunResult(asked, records, Words(), LAYERS))  # type: ignore[arg-type]
    assert json.loads((tmp_path / "meta.json").read_text())["cloud_nodes"] == 2
