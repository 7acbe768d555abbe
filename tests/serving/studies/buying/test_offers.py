"""The offers for a number of users: refusals before any work, and the arithmetic of the table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.hardware.battery import Battery
from serving.hardware.price import Price
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch
from serving.progress import silent
from serving.runtimes.simulated import Simulated
from serving.studies.buying.offers import Offers
from serving.studies.buying.stages import SERVICES_FILE, list_offers, measure_apis
from serving.studies.buying.usage import Usage
from serving.studies.capacity.measure import CAPACITY_FILE
from serving.studies.capacity.policy_capacity import PolicyCapacity, SeedCapacity
from serving.studies.capacity.search import CapacitySearch
from serving.studies.capacity.spending import AnswerSpending
from serving.workload.slo import SloClass
from tests.serving.studies.buying.apis import API, routing
from tests.serving.studies.capacity.steady_setup import ALWAYS, setup
from tests.support.conf_files import chip
from tests.support.policies import policy

USAGE = Usage(tokens_per_day=7200.0, active_share=0.1)
A100, RTX_4090, L40S = (chip(name) for name in ("a100_80gb", "rtx_4090", "l40s"))
DECODES = policy("cloud_centric")
MONTH_H = 730.0
BATTERY = Battery(10.0, "datasheet: a label", "2026-11")


def offers(**how: Any) -> Offers:
    how = {"setup": setup(chosen=DECODES), "usage": USAGE, "users": (100, 1000), "chips": (A100,), "apis": (API,)} | how
    return Offers(**how)


def capacity(
    devices: float | None, low: float | None = 10.0, high: float | None = 14.0, late: float = 0.0
) -> PolicyCapacity:
    """Of one seed: 10 ms of the chip, 0.5 J of the device's chip and 0.25 J of its radio for a token."""
    spent = AnswerSpending(50, 100.0, 18.0, 0.4, 9.0, 0.5, 0.25, 0.01)
    one = SeedCapacity(devices, 12, {"c": late}, 100.0, spent)
    return PolicyCapacity({0: one}, low, high, False, 0.05)


def table(folder: Path, offered: Offers, found: dict[str, PolicyCapacity], services: Any = None) -> dict[str, Any]:
    for name, content in ((CAPACITY_FILE, {k: v.to_dict() for k, v in found.items()}), (SERVICES_FILE, services or {})):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    list_offers(folder, offers=offered, capacity=folder, services=folder, epsilon=0.05)
    rows: dict[str, Any] = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    return rows


def test_chips_are_bought_for_the_users_of_the_busiest_minutes(tmp_path: Path) -> None:
    """100 users, of whom 10 ask at once: one A100 carries 12. 1,000: 100 / 12, so 9, or 8 to 10 by the interval."""
    rows = table(tmp_path, offers(apis=(), batteries={"drafter_50": BATTERY}), {"a100_80gb": capacity(12.0)})
    few, many = (rows[f"{users} users"]["cloud_centric, a100_80gb"] for users in ("100", "1,000"))
    assert (few["chips"], many["chips"], many["chips, 95 %"]) == (1, 9, "8 to 10")
    assert many["USD a month"] == pytest.approx(9 * 2.736 * MONTH_H)
    assert many["USD a user"] == pytest.approx(9 * 2.736 * MONTH_H / 1000)
    tokens_per_month = 1000 * 7200 * 365 / 12
    assert many["USD/M tokens"] == pytest.approx(9 * 2.736 * MONTH_H / tokens_per_month * 1e6)
    busy = 1000 * 7200 * 0.01 / (9 * 86400)
    assert many["busy, %"] == pytest.approx(100 * busy)
    assert many["cloud, kWh a month"] == pytest.approx(9 * MONTH_H * (400 * busy + 50 * (1 - busy)) / 1000)
    assert many["device, J/token"] == 0.75
    assert many["device, kWh a month"] == pytest.approx(0.75 * tokens_per_month / 3.6e6)
    assert many["battery a day, %"] == pytest.approx(100 * 0.75 * 7200 / 36000)
    assert (many["TTFT, s"], many["tokens/s"], many["text"], many["users"]) == (0.4, 9.0, "the cloud's", 1000)


def test_chips_that_may_carry_no_device_have_no_upper_number(tmp_path: Path) -> None:
    rows = table(tmp_path, offers(apis=()), {"a100_80gb": capacity(12.0, 0.4, 14.0)})
    assert rows["1,000 users"]["cloud_centric, a100_80gb"]["chips, 95 %"] == "8 or more"


def test_a_search_that_ended_at_its_limit_says_so(tmp_path: Path) -> None:
    bounded = replace(capacity(12.0, 12.0, 12.0), bounded=True)
    rows = table(tmp_path, offers(apis=()), {"a100_80gb": bounded})
    assert rows["1,000 users"]["cloud_centric, a100_80gb"]["chips, 95 %"] == "9 or fewer"


@pytest.mark.parametrize(("low", "chips"), [(10.0, "10 or fewer"), (0.4, None)])
def test_a_search_that_ended_at_its_limit_under_one_seed_counts_chips_at_the_low_end(
    tmp_path: Path, low: float, chips: str | None
) -> None:
    """Of 1,000 users 100 ask at once. Where a chip may carry no device, no number of chips is enough for certain."""
    one = capacity(16.0).by_seed[0]
    seeds = {seed: replace(one, capacity=most) for seed, most in enumerate((16.0, 16.0, 10.0))}
    bounded = PolicyCapacity(seeds, low, 18.0, True, 0.05)
    rows = table(tmp_path, offers(apis=()), {"a100_80gb": bounded})
    found = rows["1,000 users"]["cloud_centric, a100_80gb"]
    assert (found["chips"], found["chips, 95 %"]) == (8, chips)


def test_a_price_of_the_offer_replaces_the_chip_s(tmp_path: Path) -> None:
    prices = {"a100_80gb": Price(1.0, "datasheet: another list", "2026-11")}
    rows = table(tmp_path, offers(apis=(), prices=prices), {"a100_80gb": capacity(12.0)})
    found = rows["100 users"]["cloud_centric, a100_80gb"]
    assert found["USD a month"] == pytest.approx(MONTH_H)
    assert found["battery a day, %"] is None


def test_devices_of_unlike_batteries_have_no_battery_in_common() -> None:
    own = setup(chosen=DECODES)
    one = own.hardware.device
    assert one is not None
    other = replace(one, chip=replace(one.chip, name="another"))
    mixed = replace(own, hardware=replace(own.hardware, device=None, fleets=(one, other)))
    larger = Battery(20.0, "datasheet: a label", "2026-11")
    name = one.chip.name
    assert offers(setup=mixed, batteries={name: BATTERY, "another": BATTERY}).battery == BATTERY
    assert offers(setup=mixed, batteries={name: BATTERY, "another": larger}).battery is None
    assert offers(setup=mixed, batteries={name: BATTERY}).battery is None


def test_a_node_of_several_chips_pays_for_all_of_them(tmp_path: Path) -> None:
    own = setup(chosen=DECODES)
    assert own.hardware.cloud is not None
    cloud = replace(own.hardware.cloud, timing="roofline", tensor_parallel=2)
    pairs = replace(own, hardware=replace(own.hardware, cloud=cloud))
    rows = table(tmp_path, offers(setup=pairs, apis=()), {"a100_80gb": capacity(12.0)})
    found = rows["1,000 users"]["cloud_centric, a100_80gb"]
    assert (found["chips"], found["devices a chip"]) == (18, 6)
    assert found["USD a month"] == pytest.approx(18 * 2.736 * MONTH_H)
    busy = 1000 * 7200 * 0.01 / (18 * 86400)  # the capacity counts the seconds of both chips
    assert found["busy, %"] == pytest.approx(100 * busy)
    assert found["cloud, kWh a month"] == pytest.approx(18 * MONTH_H * (400 * busy + 50 * (1 - busy)) / 1000)


def test_a_draft_model_on_chips_of_its_own_is_paid_and_fed(tmp_path: Path) -> None:
    apart = policy(
        "sled", placement=ColocatedPlacement(drafter="apart"), kv_cache=PrefixCaching(), prefill=WholePrefill("first"),
        scheduler=ContinuousBatch(), batch_drafts=True,
    )  # fmt: skip
    rows = table(tmp_path, offers(setup=setup(chosen=apart), apis=()), {"a100_80gb": capacity(12.0)})
    found = rows["1,000 users"]["sled, a100_80gb"]
    assert (found["chips"], found["devices a chip"]) == (18, 6)
    assert found["USD a month"] == pytest.approx(18 * 2.736 * MONTH_H)
    busy = 1000 * 7200 * 0.01 / (18 * 86400)
    assert found["cloud, kWh a month"] == pytest.approx(18 * MONTH_H * (400 * busy + 50 * (1 - busy)) / 1000)


def test_an_api_is_paid_by_the_token_whatever_the_busiest_minutes(tmp_path: Path) -> None:
    """An answer of 18 tokens is billed 100 and 18: 17.2 millionths of a dollar."""
    folder = tmp_path / "services"
    folder.mkdir()
    search = CapacitySearch(warmup_s=4, window_s=20, stagger_s=2, answers=4, seeds=(0, 1))
    offered = offers(chips=())
    measure_apis(
        folder, progress=silent, clouds=offered.clouds, apis=offered.apis, runtime=Simulated(ALWAYS), search=search
    )
    services = json.loads((folder / SERVICES_FILE).read_text(encoding="utf-8"))
    assert list(services["an_api"]) == ["0", "1"]
    rows = table(tmp_path, offered, {}, services)
    found = rows["1,000 users"]["cloud_centric, an_api"]
    assert found["USD a month"] == pytest.approx(1000 * 7200 * 365 / 12 / 18 * (100 * 0.1 + 18 * 0.4) / 1e6)
    assert found["billed tokens a token"] == pytest.approx(118 / 18)
    assert (found["calls an answer"], "chips" in found) == (1, False)
    assert found["device, J/token"] is None


def test_what_cannot_serve_has_a_row_that_says_why(tmp_path: Path) -> None:
    offered = offers(setup=setup(chosen=policy("sled")), chips=(A100, RTX_4090), apis=(API,))
    rows = table(tmp_path, offered, {"a100_80gb": capacity(0.0, 0.0, 0.0, late=0.8)})
    assert list(rows) == ["not served"]
    why = {row: cells["why"] for row, cells in rows["not served"].items()}
    assert "does not fit into rtx_4090" in why["sled, rtx_4090"]
    assert "judges none" in why["sled, an_api"]
    assert why["sled, a100_80gb"].startswith("a lone device: 80% of its answers are late, 5% may be")


def test_chips_are_not_counted_for_a_usage_that_contradicts_the_speed(tmp_path: Path) -> None:
    """100,000 tokens at 9 tokens/s take 0.129 of the day, more than the tenth of the busiest minutes."""
    offered = offers(apis=(), usage=Usage(100_000.0, 0.1))
    (row,) = table(tmp_path, offered, {"a100_80gb": capacity(12.0)})["not served"].values()
    assert "keep a user waiting 0.13 of the day" in row["why"]


def test_an_api_that_is_late_is_not_bought(tmp_path: Path) -> None:
    slo = (SloClass(name="c", tokens_per_s=2.0, ttft_s=0.4),)
    offered = offers(setup=setup(slo=slo, chosen=DECODES), chips=())
    search = CapacitySearch(warmup_s=4, window_s=20, stagger_s=2, answers=4, seeds=(0,))
    measure_apis(
        tmp_path, progress=silent, clouds=offered.clouds, apis=offered.apis, runtime=Simulated(ALWAYS), search=search
    )
    services = json.loads((tmp_path / SERVICES_FILE).read_text(encoding="utf-8"))
    (row,) = table(tmp_path, offered, {}, services)["not served"].values()
    assert "100% of its answers are late" in row["why"]
    assert "promised: 2 tokens/s, TTFT 0.4 s" in row["why"]


def test_a_policy_without_a_cloud_costs_no_chips(tmp_path: Path) -> None:
    offered = offers(setup=setup(chosen=policy("edge_centric")))
    found = table(tmp_path, offered, {"no cloud": capacity(None, None, None)})["100 users"]["edge_centric, no cloud"]
    assert (found["chips"], found["USD a month"], found["text"]) == (0, 0.0, "the device's")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            {"chips": (RTX_4090,), "apis": ()},
            r"nothing that is offered can serve cloud_centric: qwen3_32b does not",
        ),
        ({"setup": setup(chosen=policy("sled")), "chips": ()}, r"can serve sled: sled has drafts verified"),
        ({"chips": (), "apis": ()}, r"buy\.chips and buy\.apis are empty"),
        ({"chips": (chip("h100_80gb"),)}, r"chip h100_80gb has no price.*buy\.prices\.h100_80gb"),
        ({"users": ()}, r"give different numbers of users"),
        ({"users": (0, 5)}, r"each 1 or more"),
        ({"setup": setup(slo=(), chosen=DECODES)}, r"no SLO class"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_any_work(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        offers(**how)


def test_routing_may_be_served_by_both() -> None:
    assert offers(setup=setup(chosen=routing())).served_by == (API,)
