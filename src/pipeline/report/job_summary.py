"""The printed summary of one job: its configuration, latency, tokens, bytes, energy and cost.

A text such as `{throughput/tokens_per_s} tokens/s` names metrics, each of which is printed as its definition says.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts.environment import DISTRIBUTION
from pipeline.artifacts.manifest import format_nbytes
from pipeline.report.clock_errors import with_errors
from pipeline.report.context import JobContext
from pipeline.report.estimate import estimate
from pipeline.report.prompt_sums import group_by_prompt, prompt_sums
from pipeline.report.records import Records
from pipeline.report.summary import QUALITY, JobSummary
from pipeline.report.table import (
    LabelledTexts,
    ReportPart,
    Table,
    format_metric,
    format_number,
    format_percent,
    format_with_unit,
)
from serving.metrics import definitions


def summary_parts(
    records: Records, summary: JobSummary, context: JobContext, sealed_use: str | None = None
) -> list[ReportPart]:
    """The printed report of a job, in reading order; `sealed_use` says how often its sealed prompts were used."""
    return [
        " | ".join([records.meta.policy, *_group_choices(context), _text(summary, "{requests} requests")]),
        LabelledTexts(tuple(_setup_facts(records, context))),
        _latency(summary),
        LabelledTexts(tuple(_result_facts(records, summary, context))),
        LabelledTexts(tuple(("note", note) for note in (*records.meta.notes, *filter(None, [sealed_use])))),
    ]


def _group_choices(context: JobContext) -> list[str]:
    return [context.choices[group] for group in ("hardware", "network", "workload") if context.choices.get(group)]


def _setup_facts(records: Records, context: JobContext) -> Iterator[tuple[str, str]]:
    meta = records.meta
    yield from (("note", caveat) for caveat in meta.caveats)
    for side in ("device", "cloud"):
        yield side, _side_facts(records, context, side)
    for link in records.meta.raw.get("links", []):
        yield "link", str(link)
    for radio in meta.radios:
        yield "radio", radio
    for chip, figures in meta.heat.items():
        yield "heat", _heat(chip, figures)
    if workload := _format_numbers(context.config_value("workload"), _WORKLOAD_PHRASES):
        yield "workload", workload
    yield "policy", _policy_slots(context, str(meta.raw.get("policy_case") or "")) or meta.policy
    if meta.lossless:
        yield "lossless", "every token is the cloud model's own choice"
    versions = [
        f"{name} {context.versions[name]}" for name in ("torch", "transformers", "core") if name in context.versions
    ]
    if runtime := str(meta.raw.get("runtime", "")):
        yield "runtime", f"{runtime}: {meta.raw.get('runtime_described', '')}"
    code = context.revision or f"{DISTRIBUTION} {context.versions.get(DISTRIBUTION, 'of no known version')}"
    yield "run", ", ".join([f"seed {meta.seed}", f"code {code}", *versions])


def _side_facts(records: Records, context: JobContext, side: str) -> str:
    """The model that wrote, what it is timed as, chip with its mode, and source of the latency coefficients."""
    model = _name(context.config_value(f"model.{side}.timed_architecture"))
    models = records.meta.raw.get("models") or {}
    if models:
        model = f"{models[side]['wrote']}, timed as {models[side]['timed_as']}" if side in models else "no model"
    chip = _device_chips(records) if side == "device" else _name(context.config_value("hardware.cloud.chip"))
    timing = records.meta.timing.get(side)
    clock = f"time: {with_errors(timing)}" if timing else ""
    parts = [f"{model} on {chip}" if model and chip else model or chip, clock]
    return "; ".join(filter(None, parts)) or "not recorded"


def _device_chips(records: Records) -> str:
    """The number of devices of each chip, with their modes."""
    modes: dict[str, set[str]] = defaultdict(set)
    chips = {request.device: request.chip for request in records.requests}
    for request in records.requests:
        modes[request.chip].add(request.mode)
    return ", ".join(
        f"{n} x {chip} {'/'.join(sorted(modes[chip]))}".strip() for chip, n in sorted(Counter(chips.values()).items())
    )


def _heat(chip: str, figures: Mapping[str, Any]) -> str:
    """A decoded token cold and after minutes of load, and which of them the run was timed with."""
    behind = f"{figures['architecture']} decodes a token behind {figures['cached_tokens']}"
    cold = f"{chip}: {behind} in {1e3 * figures['cold_s']:.1f} ms cold"
    if figures["sustained_s"] is None:
        return f"{cold}; sustained: unknown"
    hot = f"{1e3 * figures['sustained_s']:.1f} ms sustained"
    return f"{cold}, {hot}: {figures['curve']}; this run: {figures['run']}"


def _name(node: Any) -> str:
    return str(node.get("name", "")) if isinstance(node, Mapping) else str(node or "")


_WORKLOAD_PHRASES = {
    "num_prompts": "{:g} prompts",
    "devices": "{:g} devices",
    "max_prompt_tokens": "up to {:g} tokens in",
    "max_new_tokens": "up to {:g} out",
}


def _format_numbers(node: Any, phrases: Mapping[str, str]) -> str:
    """The numbers of a configuration node, each in its phrase."""
    known = {name: node.get(name) for name in phrases} if isinstance(node, Mapping) else {}
    return ", ".join(phrases[name].format(value) for name, value in known.items() if isinstance(value, int | float))


def _policy_slots(context: JobContext, case: str = "") -> str:
    """Every slot with its choice and its options; `case`: of the policy below `policy` that was served."""
    place = f"policy.{case}" if case else "policy"
    policy = context.config_value(place) or {}
    nodes = {name: node for name, node in policy.items() if isinstance(node, Mapping) and "_target_" in node}
    slots = {name: node for name, node in nodes.items() if "placement" not in node}  # a policy has slots of its own
    groups = {slot: f"policy/{slot}@{place}.{slot}" if case else f"policy/{slot}" for slot in slots}
    return ", ".join(f"{slot} {_slot_choice(context.choices.get(groups[slot]), node)}" for slot, node in slots.items())


def _slot_choice(chosen: str | None, node: Mapping[str, Any]) -> str:
    name = chosen or str(node["_target_"]).rpartition(".")[2]
    options = [
        f"{key}={value:g}" if not isinstance(value, str) else f"{key}={value}"
        for key, value in node.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and not key.startswith("_")
    ]
    return f"{name} ({', '.join(options)})" if options else name


def _latency(summary: JobSummary) -> Table:
    """A row for each metric of percentiles that has a name."""
    named = [one for one in definitions.METRICS if one.name and isinstance(one.formula, definitions.Distribution)]
    rows = [(one.name, *(format_metric(one, summary[key]) for key in one.keys)) for one in named]
    return Table(("latency, ms", *definitions.STATISTICS), tuple(rows))


@dataclass(frozen=True)
class _MetricTexts(Mapping[str, str]):
    """Each metric's value as it is printed, by key."""

    summary: JobSummary

    def __getitem__(self, key: str) -> str:
        metric = definitions.find(key)
        assert metric is not None, key
        return format_metric(metric, self.summary[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.summary.values)

    def __len__(self) -> int:
        return len(self.summary.values)


def _text(summary: JobSummary, template: str) -> str:
    return template.format_map(_MetricTexts(summary))


_WASTE = (
    "{waste/rejected_tokens} sent drafts a verification fell, {waste/wdt_s} ms of drafting, {waste/time_share} of all "
    "of it"
)
_EARLY_EXIT = (
    "{early_exit/token_share} of drafted tokens left before the last layer; {early_exit/layer_share} of layers ran"
)
_LOOKAHEAD = (
    "{lookahead/attempts} verdicts prepared for; the position was right in {lookahead/position_hit_rate}, position and "
    "token in {lookahead/hit_rate}"
)
_STALLS = (
    "devices stood still for {stalls/link_share} of their time because of the link, for {stalls/cloud_share} because "
    "of the cloud"
)
_BUSY = (
    "devices {resources/device_busy_s} s, cloud {resources/cloud_busy_s} s for {resources/cloud_forward_tokens} rows, "
    "requests queued there for {resources/cloud_queue_s} s in all"
)
_ESTIMATOR = (
    "{estimator/batches} batches of the cloud differ from what its scheduler expects by {estimator/mape} on average"
)


def _result_facts(records: Records, summary: JobSummary, context: JobContext) -> Iterator[tuple[str, str]]:
    yield "quality", _quality(records, summary)
    yield "speed", _speed(summary)
    yield "drafts", _drafts(summary)
    if summary["speculation/verifications"] and summary["speculation/drafted"]:
        more = (
            "; {waste/discarded_tokens} more were dropped by a stop rule" if summary["waste/discarded_tokens"] else ""
        )
        yield "wasted", _text(summary, _WASTE + more)
    if summary["early_exit/token_share"]:
        yield "early exit", _text(summary, _EARLY_EXIT)
    if summary["lookahead/attempts"]:
        yield "look-ahead", _text(summary, _LOOKAHEAD)
    if summary["offloading/chunk_share"] and summary["stalls/link_share"] is not None:
        yield "stalls", _text(summary, _STALLS)
    yield "offloaded", _offloaded(summary, context)
    yield "written by", ", ".join(_origin_shares(summary))
    yield "link", _link(summary)
    yield "busy", _text(summary, _BUSY)
    if records.meta.tiers:
        yield "tiers", "; ".join(f"{name}: {_tier(figures)}" for name, figures in records.meta.tiers.items())
    yield "energy", _energy(summary)
    yield "cloud cost", _price(records, summary)
    yield "Synera's cost", _cost(records, summary)
    if summary["estimator/mape"] is not None:
        r2 = f", R2 {summary['estimator/r2']:.3f}" if summary["estimator/r2"] is not None else ""
        yield "estimator", _text(summary, f"{_ESTIMATOR}{r2}, bias {{estimator/bias_s}} ms")
    for name in dict.fromkeys(key.rpartition("/")[0] for key in summary.below("slo/")):
        yield (
            f"SLO {name}",
            _text(summary, f"{{slo/{name}/violation_rate}} of {{slo/{name}/requests}} requests violated"),
        )
    for metric in definitions.METRICS:
        if metric.name and metric.key in summary.values:
            yield metric.name, format_with_unit(metric, summary.values[metric.key])


def _origin_shares(summary: JobSummary) -> Iterator[str]:
    tokens = max(1.0, summary.values["tokens"])
    for origin, count in summary.below("offloading/tokens_by_origin/").items():
        if count:
            yield f"{origin} {format_percent(count / tokens)}"


def _tier(figures: Mapping[str, float]) -> str:
    """Blocks, use and memory of a tier's nodes."""
    parts = [f"{figures['blocks']:g} blocks on each of {figures['nodes']:g}"]
    parts += [f"{format_percent(figures[name])} {what}" for name, what in _TIER_PHRASES.items() if name in figures]
    return ", ".join(parts)


_TIER_PHRASES = {"utilisation": "busy", "memory_share": "of memory"}


def _quality(records: Records, summary: JobSummary) -> str:
    value = summary[QUALITY]
    if value is None:
        return "not measured"
    found = estimate(value, "", prompt_sums(QUALITY, value, group_by_prompt(records.requests))).interval
    assert found is not None
    text = f"{records.meta.quality_metric} {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
    by_task = [f"{task} {value:.2f}" for task, value in summary.below("quality/by_task/").items()]
    tasks = f"; by task: {', '.join(by_task)}" if len(by_task) > 1 else ""
    rouge = summary["quality/rouge_1"]
    return text + tasks + ("" if rouge is None else f"; ROUGE-1 {rouge:.3f}")


def _speed(summary: JobSummary) -> str:
    has_classes = bool(summary.below("slo/"))
    rule = "complete requests within their SLO class" if has_classes else "complete requests; no SLO class was set"
    return _text(
        summary,
        "{throughput/tokens_per_s} tokens/s, {throughput/requests_per_s} requests/s, goodput "
        f"{{throughput/goodput_tokens_per_s}} tokens/s ({rule}); {{complete}} of {{requests}} complete",
    )


def _drafts(summary: JobSummary) -> str:
    if not summary["speculation/drafted"] and not summary["speculation/verified"]:
        return "none"
    text = "{speculation/drafted} tokens drafted, {speculation/wasted_share} wasted"
    if not summary["speculation/drafted"]:
        text = "candidates proposed by heads of the cloud's model"
    judged = (
        "{speculation/verified} judged in {speculation/verifications} verifications, {speculation/acceptance_rate} "
        "accepted; acceptance length {speculation/acceptance_length}, with the cloud's own token "
        "{speculation/acceptance_length_with_bonus}"
    )
    found = [text, judged if summary["speculation/verifications"] else "none judged by the cloud"]
    if summary["speculation/replaced"]:
        found.append("{speculation/replaced} never sent, because the cloud wrote in their place")
    return _text(summary, "; ".join(found))


def _offloaded(summary: JobSummary, context: JobContext) -> str:
    asked = context.config_value("policy.offload.budget")
    budget = f" (budget {format_percent(asked)})" if isinstance(asked, int | float) else ""
    known = summary["offloading/chunk_share"] is not None
    chunks = f"{{offloading/chunk_share}} of draft chunks{budget}" if known else "no draft chunks"
    return _text(summary, f"{chunks}; {{offloading/token_share}} of the text's tokens judged or written by the cloud")


def _link(summary: JobSummary) -> str:
    names = ("uplink_nbytes", "downlink_nbytes", "uplink_messages")
    up, down, messages = (summary.values[f"resources/{name}"] / summary.values["requests"] for name in names)
    return f"{format_nbytes(up)} up, {format_nbytes(down)} down and {format_number(messages)} messages up a request"


def _energy(summary: JobSummary) -> str:
    """The device's chip, its radio and both together, and the cloud."""
    radio = "its radio unknown"
    if summary["resources/radio_j_per_token"] is not None:
        radio = "{resources/radio_j_per_token} J in its radio, {resources/device_total_j_per_token} J together"
    chip, cloud = (
        "{resources/device_j_per_token} J a token on the device",
        "{resources/cloud_j_per_token} J in the cloud",
    )
    return _text(summary, f"{chip}, {radio}; {cloud}")


def _price(records: Records, summary: JobSummary) -> str:
    """The cost of the cloud's busy chips, at which price and at which load."""
    busy = _text(summary, "{cost/chip_s_per_token} ms of a cloud chip a token")
    prices = "; ".join(f"{chip}: {price}" for chip, price in records.meta.prices.items())
    if summary["cost/usd_per_million_tokens"] is None:
        return f"{busy}; its price is not known" + (f" ({prices})" if prices else "")
    use, devices = summary["resources/cloud_busy_share"], len({request.device for request in records.requests})
    load = f"at the load of this run: {devices} devices" + (
        "" if use is None else f", cloud busy {format_percent(use)}"
    )
    cost = _text(summary, "{cost/usd_per_million_tokens} USD a million tokens")
    return f"{cost}, {busy}, {load}" + (f"; {prices}" if prices else "")


def _cost(records: Records, summary: JobSummary) -> str:
    factor = records.meta.packing_factor
    shares = "W {cost/w_verified} as tokens verified, {cost/w_generated} as tokens written by the LLM"
    if factor is None or summary["cost/verified_s"] is None:
        lacking = "a packing factor" if factor is None else "a TBT"
        return _text(summary, f"c = T W / Pf is not known for want of {lacking}; {shares}")
    costs = (
        "c = T W / Pf per token: {cost/verified_s} ms and {cost/generated_s} ms with T as TBT, "
        "{cost/verified_service_s} ms and {cost/generated_service_s} ms with T as service time a token, "
    )
    return f"{_text(summary, costs + shares)}; Pf {factor.value:g} ({factor.source})"
