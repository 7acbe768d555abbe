"""What is printed of one job: the configuration it belongs to, latency, and what became of tokens, bytes and energy."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report import statistics
from pipeline.report.context import JobContext
from pipeline.report.records import Records
from pipeline.report.statistics import Percentiles
from pipeline.report.summary import JobSummary
from pipeline.report.table import LabelledTexts, ReportPart, Table, format_nbytes, format_number, format_percent

BOOTSTRAP_SEED = 0
"""Of bootstrap resampling: the same records give the same interval."""


def summary_parts(records: Records, summary: JobSummary, context: JobContext) -> list[ReportPart]:
    """All that is said of a job, in reading order."""
    return [
        " | ".join([records.meta.policy, *_group_choices(context), f"{summary.requests} requests"]),
        LabelledTexts(tuple(_setup_facts(records, context))),
        _latency(summary),
        LabelledTexts(tuple(_result_facts(records, summary, context))),
        LabelledTexts(tuple(("note", note) for note in records.meta.notes)),
    ]


def _group_choices(context: JobContext) -> list[str]:
    return [context.choices[group] for group in ("hardware", "network", "workload") if context.choices.get(group)]


def _setup_facts(records: Records, context: JobContext) -> Iterator[tuple[str, str]]:
    meta = records.meta
    for side in ("device", "cloud"):
        yield side, _side_facts(records, context, side)
    for link in records.meta.raw.get("links", []):
        yield "link", str(link)
    if workload := _format_numbers(context.config_value("workload"), _WORKLOAD_PHRASES):
        yield "workload", workload
    yield "policy", _policy_slots(context) or meta.policy
    if meta.lossless:
        yield "lossless", "every token is the cloud model's own choice"
    versions = [f"{name} {context.versions[name]}" for name in ("torch", "transformers") if name in context.versions]
    if runtime := str(meta.raw.get("runtime", "")):
        yield "runtime", f"{runtime}: {meta.raw.get('runtime_described', '')}"
    yield "run", ", ".join([f"seed {meta.seed}", f"code {context.revision or 'without revision'}", *versions])


def _side_facts(records: Records, context: JobContext, side: str) -> str:
    """Model, chip with its mode, and which latency coefficients make the time."""
    model = _name(context.config_value(f"model.{side}.timed_architecture"))
    chip = _device_chips(records) if side == "device" else _name(context.config_value("hardware.cloud.chip"))
    timing = records.meta.timing.get(side)
    parts = [f"{model} on {chip}" if model and chip else model or chip, f"time: {timing}" if timing else ""]
    return "; ".join(filter(None, parts)) or "not recorded"


def _device_chips(records: Records) -> str:
    """How many devices of each chip, with the modes that they served in."""
    modes: dict[str, set[str]] = defaultdict(set)
    chips = {request.device: request.chip for request in records.requests}
    for request in records.requests:
        modes[request.chip].add(request.mode)
    return ", ".join(
        f"{n} x {chip} {'/'.join(sorted(modes[chip]))}".strip() for chip, n in sorted(Counter(chips.values()).items())
    )


def _name(node: Any) -> str:
    return str(node.get("name", "")) if isinstance(node, Mapping) else str(node or "")


_WORKLOAD_PHRASES = {
    "num_prompts": "{:g} prompts",
    "devices": "{:g} devices",
    "max_prompt_tokens": "up to {:g} tokens in",
    "max_new_tokens": "up to {:g} out",
}


def _format_numbers(node: Any, phrases: Mapping[str, str]) -> str:
    """What numbers a configuration node has, each in its phrase."""
    known = {name: node.get(name) for name in phrases} if isinstance(node, Mapping) else {}
    return ", ".join(phrases[name].format(value) for name, value in known.items() if isinstance(value, int | float))


def _policy_slots(context: JobContext) -> str:
    """Every slot with its choice and the numbers that it was given."""
    policy = context.config_value("policy") or {}
    found = {slot: node for slot, node in policy.items() if isinstance(node, Mapping) and "_target_" in node}
    return ", ".join(f"{slot} {_slot_choice(context, slot, node)}" for slot, node in found.items())


def _slot_choice(context: JobContext, slot: str, node: Mapping[str, Any]) -> str:
    name = context.choices.get(f"policy/{slot}") or str(node["_target_"]).rpartition(".")[2]
    options = [
        f"{key}={value:g}" if not isinstance(value, str) else f"{key}={value}"
        for key, value in node.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and not key.startswith("_")
    ]
    return f"{name} ({', '.join(options)})" if options else name


def _latency(summary: JobSummary) -> Table:
    rows = {
        "time to first token (TTFT)": summary.latency.ttft_s,
        "time between tokens (TBT), mean of a request": summary.latency.tbt_s,
        "service over tokens, mean of a request": summary.latency.service_s_per_token,
        "gap between two tokens": summary.latency.itl_s,
        "end to end": summary.latency.end_to_end_s,
        "queueing in the cloud": summary.latency.cloud_queue_s,
    }
    return Table(
        ("latency, ms", "mean", "median", "p90", "p99"),
        tuple((name, *_milliseconds(spread)) for name, spread in rows.items()),
    )


def _milliseconds(spread: Percentiles | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 4
    return tuple(format_number(1000 * value) for value in (spread.mean, spread.median, spread.p90, spread.p99))


def _result_facts(records: Records, summary: JobSummary, context: JobContext) -> Iterator[tuple[str, str]]:
    yield "quality", _quality(records, summary)
    yield "speed", _speed(summary)
    yield "drafts", _drafts(summary)
    if summary.speculation.verifications and summary.speculation.drafted:
        yield "wasted", _waste(summary)
    if summary.early_exit.token_share:
        yield "early exit", _early_exit(summary)
    if summary.lookahead.attempts:
        yield "look-ahead", _lookahead(summary)
    if summary.speculation.verifications and summary.stalls.link_share is not None:
        yield "stalls", _stalls(summary)
    yield "offloaded", _offloaded(summary, context)
    shares = {origin: count / max(1, summary.tokens) for origin, count in summary.offloading.tokens_by_origin.items()}
    yield "written by", ", ".join(f"{origin} {format_percent(share)}" for origin, share in shares.items() if share)
    yield "link", _link(summary)
    yield "busy", _busy(summary)
    if records.meta.tiers:
        yield "tiers", "; ".join(f"{name}: {_tier(figures)}" for name, figures in records.meta.tiers.items())
    yield "energy", _energy(summary)
    yield "cloud cost", _cost(records, summary)
    if "mape" in summary.estimator:
        yield "estimator", _estimator(summary.estimator)
    for name, outcome in summary.slo.items():
        yield f"SLO {name}", f"{format_percent(outcome.violation_rate)} of {outcome.requests} requests violated"


def _tier(figures: Mapping[str, float]) -> str:
    """Of a tier's nodes, while anything was under way."""
    parts = [f"{figures['blocks']:g} blocks on each of {figures['nodes']:g}"]
    parts += [f"{format_percent(figures[name])} {what}" for name, what in _TIER_PHRASES.items() if name in figures]
    return ", ".join(parts)


_TIER_PHRASES = {"utilisation": "busy", "memory_share": "of memory"}


def _quality(records: Records, summary: JobSummary) -> str:
    scores = [request.quality for request in records.requests if request.quality is not None]
    if not scores:
        return "not measured"
    found = statistics.mean_interval(scores, seed=BOOTSTRAP_SEED)
    text = f"{records.meta.quality_metric} {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
    by_task = [f"{task} {value:.2f}" for task, value in summary.quality.by_task.items()]
    tasks = f"; by task: {', '.join(by_task)}" if len(by_task) > 1 else ""
    rouge = "" if summary.quality.rouge_1 is None else f"; ROUGE-1 {summary.quality.rouge_1:.3f}"
    return text + tasks + rouge


def _speed(summary: JobSummary) -> str:
    speed = summary.throughput
    rule = "complete requests within their SLO class" if summary.slo else "complete requests; no SLO class was set"
    return (
        f"{format_number(speed.tokens_per_s)} tokens/s, {format_number(speed.requests_per_s)} requests/s, goodput "
        f"{format_number(speed.goodput_tokens_per_s)} tokens/s ({rule}); {summary.complete} of {summary.requests} "
        "complete"
    )


def _drafts(summary: JobSummary) -> str:
    drafts = summary.speculation
    if not drafts.drafted and not drafts.verified:
        return "none"
    text = f"{drafts.drafted} tokens drafted, {format_percent(drafts.wasted_share)} wasted"
    if not drafts.drafted:
        text = "candidates proposed by heads of the cloud's model"
    if not drafts.verifications:
        return f"{text}; none judged by the cloud"
    return (
        f"{text}; {drafts.verified} judged in {drafts.verifications} verifications, "
        f"{format_percent(drafts.acceptance_rate)} accepted; acceptance length "
        f"{format_number(drafts.acceptance_length)}, with the cloud's own token "
        f"{format_number(drafts.acceptance_length_with_bonus)}"
    )


def _waste(summary: JobSummary) -> str:
    waste = summary.waste
    dropped = (
        f"; {format_number(waste.discarded_tokens)} more were dropped by a stop rule" if waste.discarded_tokens else ""
    )
    time = (
        f"{format_number(1000 * (waste.wdt_s or 0.0))} ms of drafting, {format_percent(waste.time_share)} of all of it"
    )
    return f"{format_number(waste.rejected_tokens)} sent drafts a verification fell, {time}{dropped}"


def _estimator(errors: Mapping[str, float]) -> str:
    r2 = f", R2 {errors['r2']:.3f}" if "r2" in errors else ""
    return (
        f"{errors['batches']:.0f} batches of the cloud differ from what its scheduler expects by "
        f"{format_percent(errors['mape'])} on average{r2}, bias {format_number(1000 * errors['bias_s'])} ms"
    )


def _early_exit(summary: JobSummary) -> str:
    exits = summary.early_exit
    return (
        f"{format_percent(exits.token_share)} of drafted tokens left before the last layer; "
        f"{format_percent(exits.layer_share)} of layers ran"
    )


def _lookahead(summary: JobSummary) -> str:
    ahead = summary.lookahead
    return (
        f"{ahead.attempts} verdicts prepared for; the position was right in {format_percent(ahead.position_hit_rate)}, "
        f"position and token in {format_percent(ahead.hit_rate)}"
    )


def _stalls(summary: JobSummary) -> str:
    stalls = summary.stalls
    return (
        f"devices stood still for {format_percent(stalls.link_share)} of their time because of the link, for "
        f"{format_percent(stalls.cloud_share)} because of the cloud"
    )


def _offloaded(summary: JobSummary, context: JobContext) -> str:
    asked = context.config_value("policy.offload.budget")
    budget = f" (budget {format_percent(asked)})" if isinstance(asked, int | float) else ""
    shares = summary.offloading
    known = shares.chunk_share is not None
    chunks = f"{format_percent(shares.chunk_share)} of draft chunks{budget}" if known else "no draft chunks"
    return f"{chunks}; {format_percent(shares.token_share)} of the text's tokens judged or written by the cloud"


def _link(summary: JobSummary) -> str:
    use, requests = summary.resources, summary.requests
    return (
        f"{format_nbytes(use.uplink_nbytes / requests)} up, {format_nbytes(use.downlink_nbytes / requests)} down and "
        f"{format_number(use.uplink_messages / requests)} messages up a request"
    )


def _busy(summary: JobSummary) -> str:
    use = summary.resources
    return (
        f"devices {format_number(use.device_busy_s)} s, cloud {format_number(use.cloud_busy_s)} s for "
        f"{use.cloud_forward_tokens} rows, requests queued there for {format_number(use.cloud_queue_s)} s in all"
    )


def _energy(summary: JobSummary) -> str:
    use = summary.resources
    device, cloud = (format_number(j_per_token) for j_per_token in (use.device_j_per_token, use.cloud_j_per_token))
    return f"{device} J a token on the device, {cloud} J in the cloud"


def _cost(records: Records, summary: JobSummary) -> str:
    factor, cost = records.meta.packing_factor, summary.cost
    verified, generated = format_number(cost.w_verified), format_number(cost.w_generated)
    shares = f"W {verified} as tokens verified, {generated} as tokens written by the LLM"
    if factor is None or cost.verified_s is None or cost.generated_s is None:
        return f"c = T W / Pf is not known for want of {'a packing factor' if factor is None else 'a TBT'}; {shares}"
    costs = " and ".join(f"{format_number(1000 * one)} ms" for one in (cost.verified_s, cost.generated_s))
    return f"c = T W / Pf per token: {costs} with {shares}; Pf {factor.value:g} ({factor.source})"
