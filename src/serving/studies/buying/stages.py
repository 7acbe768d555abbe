"""The stages of buying: how a policy serves with each hosted API, and the table of offers by number of users."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from serving.hardware.battery import Battery
from serving.hardware.hosted_api import HostedApi
from serving.progress import Progress
from serving.runtimes.simulated import Simulated
from serving.studies.buying.api_service import ApiService, measure_api
from serving.studies.buying.hosting import api_refusal
from serving.studies.buying.offers import Offers
from serving.studies.buying.usage import HOUR_S, HOURS_PER_MONTH, KWH_J, Usage, busy_share
from serving.studies.capacity.measure import read_capacities
from serving.studies.capacity.offered_clouds import OfferedClouds
from serving.studies.capacity.policy_capacity import PolicyCapacity, describe_slo
from serving.studies.capacity.search import CapacitySearch
from serving.studies.capacity.spending import AnswerSpending

Cells = dict[str, Any]
"""The cells of one row by column: a number, a text, or None."""
SERVICES_FILE = "services.json"
NOT_SERVED = "not served"
"""The group of the offers that cannot serve a policy, or not under the SLO."""
MILLION = 1e6


def measure_apis(
    out: Path,
    *,
    progress: Progress,
    clouds: OfferedClouds,
    apis: tuple[HostedApi, ...],
    runtime: Simulated,
    search: CapacitySearch,
) -> None:
    """Measures how the setup's policy serves a device with each API that can serve it.

    Writes services.json: by API and seed. The device's own work and the link are simulated, the API's time is stated.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    setup = next(iter(clouds.setups.values()), clouds.setup)
    able = [api for api in apis if not api_refusal(setup, api)]
    for number, api in enumerate(able, 1):
        found[api.name] = {
            seed: measure_api(setup, runtime.outcomes, search, api, seed).to_dict() for seed in search.seeds
        }
        progress(number, len(able), api.name)
    (out / SERVICES_FILE).write_text(json.dumps(found, indent=1), encoding="utf-8")


def list_offers(out: Path, *, offers: Offers, capacity: Path, services: Path, epsilon: float) -> None:
    """Writes rows.json: by number of users, what each offer takes and costs a month, and what it does to a battery.

    `capacity` and `services` are artifacts of `measure_capacity` and `measure_apis`; at most the share `epsilon` of an
    API's answers may be late.
    """
    clouds = read_capacities(capacity)
    apis = json.loads((services / SERVICES_FILE).read_text(encoding="utf-8"))
    served = {name: [ApiService(**one) for one in own.values()] for name, own in apis.items()}
    policy, slo = offers.setup.policy.name, describe_slo(offers.setup.workload.slo)
    refused: dict[str, str] = {**offers.clouds.refusals, **offers.api_refusals}
    refused |= {cloud: why for cloud, one in clouds.items() if (why := _why_not_bought(offers, one))}
    refused |= {name: why for name, own in served.items() if (why := _why_late(own, epsilon, slo))}
    table: dict[str, dict[str, Cells]] = {}
    for users in offers.users:
        rows = {name: cloud_cells(offers, name, one, users) for name, one in clouds.items() if name not in refused}
        rows |= {
            api.name: api_cells(offers, api, served[api.name], users)
            for api in offers.served_by
            if api.name not in refused
        }
        table |= {f"{users:,} users": {f"{policy}, {offer}": cells for offer, cells in rows.items()}} if rows else {}
    if refused:
        table[NOT_SERVED] = {f"{policy}, {offer}": {"why": why} for offer, why in refused.items()}
    (out / "rows.json").write_text(json.dumps(table, indent=1), encoding="utf-8")


def cloud_cells(offers: Offers, cloud: str, found: PolicyCapacity, users: int) -> Cells:
    """The row of chips of one's own, rented for the whole month; of a policy without a cloud, that of the devices."""
    usage, spent = offers.usage, found.spending
    common = {"users": users, "text": _writer(offers), **_service_cells(spent), **_device_cells(offers, spent, users)}
    if found.devices is None:
        return common | _cost_cells(usage, users, 0.0) | {"chips": 0, "cloud, kWh a month": 0.0}
    price, setup = offers.price(cloud), offers.clouds.setups[cloud]
    fleet, sets = setup.hardware.cloud, setup.chip_sets_per_cloud_node
    assert price, "checked by Offers"
    assert fleet, "checked by OfferedClouds"
    in_cloud = sets * fleet.tensor_parallel
    clouds = usage.clouds(users, found.devices)
    chips = clouds * in_cloud
    busy = min(1.0, busy_share(usage, users, fmean(one.cloud_chip_s_per_token for one in spent), chips))
    month_s = HOURS_PER_MONTH * HOUR_S
    joules = fleet.joules(busy * month_s, (1 - busy) * month_s)
    return common | _cost_cells(usage, users, chips * price.usd_per_hour * HOURS_PER_MONTH) | {
        "devices a chip": found.devices / in_cloud,
        "chips": chips,
        "chips, 95 %": _chips_interval(usage, users, found, in_cloud),
        "cloud, kWh a month": None if joules is None else clouds * sets * joules / KWH_J,
        "busy, %": 100 * busy,
    }  # fmt: skip


def api_cells(offers: Offers, api: HostedApi, found: Sequence[ApiService], users: int) -> Cells:
    """The row of a hosted API, paid by the token; its energy is not known."""
    usd = offers.usage.tokens_per_month(users) * fmean(one.usd_per_token(api) for one in found)
    return {
        "users": users,
        "text": _writer(offers),
        **_service_cells(found),
        **_device_cells(offers, found, users),
        **_cost_cells(offers.usage, users, usd),
        "calls an answer": fmean(one.calls for one in found),
        "billed tokens a token": fmean((one.input_tokens + one.output_tokens) / one.tokens for one in found),
    }


def _writer(offers: Offers) -> str:
    """Whose text users get: quality is not simulated."""
    if offers.setup.policy.lossless:
        return "the cloud's"
    return "of both" if offers.setup.uses_target else "the device's"


def _cost_cells(usage: Usage, users: int, usd: float) -> Cells:
    return {
        "USD a month": usd,
        "USD a user": usd / users,
        "USD/M tokens": usd / usage.tokens_per_month(users) * MILLION,
    }


def _service_cells(found: Sequence[AnswerSpending | ApiService]) -> Cells:
    return {"TTFT, s": fmean(one.ttft_s for one in found), "tokens/s": fmean(one.tokens_per_s for one in found)}


def _device_cells(offers: Offers, found: Sequence[AnswerSpending | ApiService], users: int) -> Cells:
    """The energy of chip and radio; of the chip alone where the radio is not known, and then it says so."""
    known = [one.device_total_j_per_token for one in found]
    chip_only = [one.device_j_per_token for one in found]
    per_token = _mean(known) if None not in known else _mean(chip_only)
    if per_token is None:
        return {"device, J/token": None, "device, kWh a month": None, "battery a day, %": None}
    day_j, battery = offers.usage.device_j_per_day(per_token), offers.battery
    return {
        "device, J/token": per_token,
        "device, of": "chip and radio" if None not in known else "chip",
        "device, kWh a month": per_token * offers.usage.tokens_per_month(users) / KWH_J,
        "battery a day, %": _battery_percent(battery, day_j),
    }


def _battery_percent(battery: Battery | None, day_j: float) -> float | None:
    return None if battery is None else 100 * battery.share(day_j)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _why_not_bought(offers: Offers, found: PolicyCapacity) -> str:
    """Why chips cannot be counted: a lone device is late, or the usage contradicts the speed that users get."""
    if found.devices is None:
        return ""
    if why := found.why_none(offers.setup.workload.slo):
        return why
    return offers.usage.contradiction(fmean(one.tokens_per_s for one in found.spending))


def _why_late(found: Sequence[ApiService], epsilon: float, slo: str) -> str:
    """Why an API does not keep the promise; empty if it does."""
    late = fmean(max(one.violations.values()) for one in found)
    if late <= epsilon:
        return ""
    speed, ttft_s = fmean(one.tokens_per_s for one in found), fmean(one.ttft_s for one in found)
    return (
        f"{late:.0%} of its answers are late, {epsilon:.0%} may be; they reach {speed:.3g} tokens/s, the first token "
        f"after {ttft_s:.3g} s; promised: {slo}"
    )


def _chips_interval(usage: Usage, users: int, found: PolicyCapacity, chips: int) -> str | None:
    """The chips at both ends of the capacity's interval; a capacity at the search's limit is known from below only."""
    if found.bounded and found.devices:
        low = found.devices if found.all_bounded else found.low
        return f"{usage.clouds(users, low) * chips} or fewer" if low and low >= 1 else None
    if found.low is None or found.high is None:
        return None
    least = usage.clouds(users, found.high) * chips
    return f"{least} to {usage.clouds(users, found.low) * chips}" if found.low >= 1 else f"{least} or more"
