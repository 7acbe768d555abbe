"""How many devices a cloud carries under one policy, with promises of speed and of the first token."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.policy.slots.scheduler import ContinuousBatch
from serving.progress import silent
from serving.runtimes.simulated import Simulated
from serving.studies.capacity.load_test import run_load_test
from serving.studies.capacity.measure import (
    CAPACITY_FILE,
    capacity_cells,
    cloud_usd_per_hour,
    measure_capacity,
    read_capacities,
)
from serving.studies.capacity.offered_clouds import NO_CLOUD, OfferedClouds
from serving.studies.capacity.policy_capacity import PolicyCapacity, describe_slo, find_policy_capacity
from serving.studies.capacity.search import CapacitySearch
from serving.studies.capacity.spending import _cloud_chip_s, device_j
from serving.workload.arrivals import ClosedLoop
from serving.workload.slo import SloClass
from tests.serving.studies.capacity.steady_setup import ALWAYS, SOMETIMES, setup
from tests.support.conf_files import bed, chip
from tests.support.policies import policy

SEARCH = CapacitySearch(
    warmup_s=2, window_s=4, stagger_s=1, answers=8, seeds=(0, 1), resolution=0.2, start_tokens_per_s=60, max_devices=16
)


def promised(tokens_per_s: float, ttft_s: float | None = None) -> tuple[SloClass, ...]:
    return (SloClass(name="c", tokens_per_s=tokens_per_s, ttft_s=ttft_s),)


def test_a_late_first_token_breaks_the_promise_of_a_fast_answer() -> None:
    """The first reply comes after 8 drafts of 20 ms and a verification of some 20 ms."""
    slow, fast = (run_load_test(setup(slo=promised(2.0, s)), ALWAYS, SEARCH, 1, 0) for s in (0.15, 0.3))
    assert (slow.violation_rate, fast.violation_rate) == (1, 0)


def test_unanswered_requests_are_late_once_their_first_token_is() -> None:
    """The search ends a run early that is certainly late: here long before an answer at 2 tokens/s would be."""
    crowded = setup(slo=promised(2.0, 0.1))
    assert run_load_test(crowded, SOMETIMES, SEARCH, 16, 0, max_late_share=0.15).violation_rate > 0.15


def test_the_capacity_has_what_an_answer_takes_at_that_load() -> None:
    slo, decodes = promised(45.0), policy("cloud_centric", scheduler=ContinuousBatch(256))
    found = find_policy_capacity(setup(slo=slo, chosen=decodes), ALWAYS, replace(SEARCH, max_devices=64))
    assert found.devices is not None
    assert 1 < found.devices < 64
    assert found.low is not None
    assert found.low <= found.devices
    for one in found.by_seed.values():
        assert one.capacity is not None
        assert one.devices == int(one.capacity)
        assert (one.spending.tokens, one.spending.prompt_tokens) == (18, 100)
        assert one.spending.tokens_per_s > 45
        assert one.violations["c"] <= 0.2
        assert one.goodput_tokens_per_s == pytest.approx(one.devices * one.spending.tokens_per_s, rel=0.2)
    assert found.why_none(slo) == ""


def test_what_one_policy_carries_counts_answers() -> None:
    with pytest.raises(ValueError, match="count_late is rounds"):
        find_policy_capacity(setup(slo=promised(45.0)), ALWAYS, replace(SEARCH, count_late="rounds"))


def test_what_a_lone_device_takes_is_its_rounds() -> None:
    """Two rounds of 8 drafts: 0.32 s of drafting, and two verifications in the cloud. The power is unknown."""
    one = find_policy_capacity(setup(slo=promised(30.0)), ALWAYS, replace(SEARCH, max_devices=1)).by_seed[0]
    assert one.devices == 1
    cold_s = 33.14e-6 * 108 + 34.5e-9 * 108 * 108 + 14.86e-3
    warm_s = 33.14e-6 * 9 + 34.5e-9 * 117 * 9 + 4.62e-6 * 108 + 14.86e-3
    assert one.spending.cloud_chip_s_per_token == pytest.approx((cold_s + warm_s) / 18, rel=0.01)
    assert one.spending.tokens_per_s == pytest.approx(18 / (0.32 + cold_s + warm_s), rel=0.01)
    assert one.spending.device_j_per_token is None


def test_a_device_computes_or_waits_from_its_start_to_its_end() -> None:
    fleet = SimpleNamespace(schedule=None, joules=lambda busy_s, idle_s: 10 * busy_s + idle_s)
    record: Any = SimpleNamespace(device="d", arrived_s=0.0, started_s=0.5, ended_s=4.0, device_busy_s=1.0)
    topology: Any = SimpleNamespace(device_fleets={"d": fleet})
    assert device_j(record, topology) == 10 * 1.0 + 2.5
    assert device_j(record, topology, waited_longer_s=0.5) == 10 * 1.0 + 3.0


def test_a_second_of_a_node_is_one_of_each_of_its_chips() -> None:
    topology: Any = SimpleNamespace(cloud_fleets={"cloud-0": SimpleNamespace(tensor_parallel=2)})
    record: Any = SimpleNamespace(node_busy_s={"cloud-0": 1.5})
    assert _cloud_chip_s(record, topology) == 3.0


def test_where_a_lone_device_is_late_the_answer_is_none_and_why() -> None:
    slo = promised(60.0)
    found = find_policy_capacity(setup(slo=slo), ALWAYS, SEARCH)
    assert found.devices == 0
    why = found.why_none(slo)
    assert "a lone device: 100% of its answers are late, 5% may be" in why
    assert "promised: 60 tokens/s" in why


@pytest.mark.parametrize("name", ["cloud_centric", "edge_centric"])
def test_where_no_answer_ends_in_time_the_capacity_is_none_and_the_row_says_why(name: str) -> None:
    """An answer of 18,000 tokens at 1,000 a second may take 18 s, and takes longer than warm-up and window."""
    slo = promised(1000.0)
    hopeless = setup(slo=slo, chosen=policy(name), max_new_tokens=18_000)
    found = find_policy_capacity(hopeless, ALWAYS, replace(SEARCH, answers=1, seeds=(0,)))
    assert (found.devices, found.by_seed[0].spending) == (0, None)
    assert "100% of its answers are late, 5% may be; none of them ended in the time" in found.why_none(slo)
    assert PolicyCapacity.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    cells = capacity_cells(found, hopeless)
    assert (cells["TTFT, s"], cells["device J/token"]) == (None, None)


def test_devices_whose_users_think_for_long_are_carried_in_larger_numbers() -> None:
    """A turn of 6 s, of which the cloud has less than one: without arrivals in a window of 4 s nothing was counted."""
    slo, decodes = promised(45.0), policy("cloud_centric", scheduler=ContinuousBatch(256))
    search = replace(SEARCH, max_devices=256, seeds=(0,))
    busy, idle = (
        find_policy_capacity(setup(slo=slo, chosen=decodes, arrivals=ClosedLoop(think_s=s)), ALWAYS, search).devices
        for s in (0.0, 6.0)
    )
    assert busy is not None
    assert idle is not None
    assert idle > 3 * busy


def test_a_policy_without_a_cloud_carries_any_number_or_none() -> None:
    alone = policy("edge_centric")
    any_number = find_policy_capacity(setup(slo=promised(10.0), chosen=alone), ALWAYS, SEARCH)
    assert (any_number.devices, any_number.low) == (None, None)
    none = find_policy_capacity(setup(slo=promised(60.0), chosen=alone), ALWAYS, SEARCH)
    assert none.devices == 0
    assert "a lone device" in none.why_none(promised(60.0))


def test_a_policy_without_a_cloud_keeps_the_promise_of_every_class() -> None:
    """A device writes some 50 tokens/s: one that wants 500 is late, however few there are of its class."""
    classes = tuple(SloClass(name=f"at_{n}", tokens_per_s=n, share=0.25) for n in (2, 4, 6, 500))
    for seed in range(3):
        search = replace(SEARCH, seeds=(seed,))
        found = find_policy_capacity(setup(slo=classes, chosen=policy("edge_centric")), ALWAYS, search)
        assert found.devices == 0
        assert found.by_seed[seed].violations == {"at_2": 0, "at_4": 0, "at_6": 0, "at_500": 1}


def test_a_capacity_survives_json() -> None:
    found = find_policy_capacity(setup(slo=promised(20.0)), ALWAYS, replace(SEARCH, seeds=(3,)))
    assert PolicyCapacity.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_promises_are_described_with_their_shares() -> None:
    mixed = (*promised(2.0, 1.5), SloClass(name="d", tokens_per_s=8, share=0.25))
    assert describe_slo(promised(4.0)) == "4 tokens/s"
    assert describe_slo((replace(mixed[0], share=0.75), mixed[1])) == (
        "75% of the devices 2 tokens/s, TTFT 1.5 s; 25% of the devices 8 tokens/s"
    )


def test_a_chip_that_does_not_hold_the_model_is_refused_with_the_arithmetic() -> None:
    offered = OfferedClouds(setup(), (chip("a100_80gb"), chip("rtx_4090")))
    assert list(offered.setups) == ["a100_80gb"]
    assert "qwen3_32b does not fit into rtx_4090 (24.00 GB)" in offered.refusals["rtx_4090"]
    assert list(OfferedClouds(setup()).setups) == ["a100_80gb"]
    assert list(OfferedClouds(setup(chosen=policy("edge_centric")), (chip("rtx_4090"),)).setups) == [NO_CLOUD]


def in_pairs(**how: Any) -> Any:
    """The setup with a cloud that has two chips a node and a mode of its own."""
    own: Any = setup(chosen=policy("cloud_centric"))
    fast = own.hardware.cloud.chip
    slow = replace(fast, modes={"slow": fast.modes[fast.default_mode]}, default_mode="slow")
    cloud = replace(own.hardware.cloud, chip=slow, mode="slow", timing="roofline", tensor_parallel=2, **how)
    return replace(own, hardware=replace(own.hardware, cloud=cloud))


def test_an_offered_chip_is_one_node_in_the_chips_own_mode() -> None:
    (found,) = OfferedClouds(in_pairs(count=2), (chip("a100_80gb"),)).setups.values()
    assert found.hardware.cloud is not None
    assert (found.hardware.cloud.count, found.hardware.cloud.mode) == (1, None)


def test_a_cloud_costs_the_price_of_all_of_its_chips() -> None:
    offered = in_pairs(count=3)
    assert cloud_usd_per_hour(offered) == 6 * offered.hardware.cloud.chip.price.usd_per_hour


def test_chips_are_offered_once_and_to_a_testbed_with_a_cloud() -> None:
    with pytest.raises(ValueError, match="name one twice"):
        OfferedClouds(setup(), (chip("a100_80gb"), chip("a100_80gb")))
    tiers = replace(setup(chosen=policy("edge_centric")), hardware=bed("hyperion"))
    with pytest.raises(ValueError, match="this testbed has tiers"):
        OfferedClouds(tiers, (chip("a100_80gb"),))


def measure(folder: Path, offered: OfferedClouds, progress: Any = silent) -> dict[str, Any]:
    out, work = folder / "out", folder / "work"
    for each in (out, work):
        each.mkdir(exist_ok=True)
    measure_capacity(
        out, progress=progress, work=work, clouds=offered, runtime=Simulated(SOMETIMES), search=SEARCH, processes=1
    )
    found: dict[str, Any] = json.loads((out / "rows.json").read_text(encoding="utf-8"))
    return found


def test_the_stage_writes_a_row_for_each_cloud_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    offered = OfferedClouds(setup(slo=promised(10.0)), tuple(map(chip, ("a100_80gb", "h100_80gb", "rtx_4090"))))

    def interrupt(done: int, total: int, note: str) -> None:
        assert (done, total, note) == (1, 2, "a100_80gb")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, offered, interrupt)
    kept = (tmp_path / "work" / "0.json").stat().st_mtime_ns
    (rows,) = measure(tmp_path, offered).values()
    assert (tmp_path / "work" / "0.json").stat().st_mtime_ns == kept
    assert list(rows) == ["a100_80gb", "h100_80gb", "rtx_4090"]
    assert set(rows["rtx_4090"]) == {"why"}
    assert rows["h100_80gb"]["USD/M tokens"] is None
    found = read_capacities(tmp_path / "out")["a100_80gb"].by_seed[0]
    usd = rows["a100_80gb"]["USD/M tokens"]["by_seed"]["0"]
    assert usd == pytest.approx(2.736 / 3600 / found.goodput_tokens_per_s * 1e6)
    assert rows["a100_80gb"]["devices"]["by_seed"]["0"] == found.capacity
    assert (tmp_path / "out" / CAPACITY_FILE).is_file()


def test_the_stage_wants_a_promise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"add \+slo=mixed"):
        measure(tmp_path, OfferedClouds(setup(slo=())))
