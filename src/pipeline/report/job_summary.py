"""What is printed of one job: the configuration it belongs to, latency, and what became of tokens, bytes and energy."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report import statistics
from pipeline.report.context import JobContext
from pipeline.report.records import Records
from pipeline.report.statistics import Spread
from pipeline.report.summary import Summary
from pipeline.report.table import Facts, Part, Table, number, percent, size

SEED = 0
"""Of bootstrap resampling: the same records give the same interval."""


def sheet(records: Records, summary: Summary, context: JobContext) -> list[Part]:
    """All that is said of a job, in reading order."""
    return [
        " | ".join([records.meta.policy, *_chosen(context), f"{summary.requests} requests"]),
        Facts(tuple(_setting(records, context))),
        _latency(summary),
        Facts(tuple(_figures(records, summary, context))),
        Facts(tuple(("note", note) for note in records.meta.notes)),
    ]


def _chosen(context: JobContext) -> list[str]:
    return [context.choices[group] for group in ("hardware", "network", "workload") if context.choices.get(group)]


def _setting(records: Records, context: JobContext) -> Iterator[tuple[str, str]]:
    meta = records.meta
    for side in ("device", "cloud"):
        yield side, _side(records, context, side)
    for link in records.meta.more.get("links", []):
        yield "link", str(link)
    if workload := _described(context.find("workload"), _WORKLOAD):
        yield "workload", workload
    yield "policy", _slots(context) or meta.policy
    if meta.lossless:
        yield "lossless", "every token is the cloud model's own choice"
    versions = [f"{name} {context.versions[name]}" for name in ("torch", "transformers") if name in context.versions]
    if runtime := str(meta.more.get("runtime", "")):
        yield "runtime", f"{runtime}: {meta.more.get('runtime_described', '')}"
    yield "run", ", ".join([f"seed {meta.seed}", f"code {context.revision or 'without revision'}", *versions])


def _side(records: Records, context: JobContext, side: str) -> str:
    """Model, chip with its mode, and which latency coefficients make the time."""
    model = _name(context.find(f"model.{side}.timing"))
    chip = _chips(records) if side == "device" else _name(context.find("hardware.cloud.chip"))
    timing = records.meta.timing.get(side)
    parts = [f"{model} on {chip}" if model and chip else model or chip, f"time: {timing}" if timing else ""]
    return "; ".join(filter(None, parts)) or "not recorded"


def _chips(records: Records) -> str:
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


_WORKLOAD = {
    "prompts": "{:g} prompts",
    "devices": "{:g} devices",
    "max_prompt_tokens": "up to {:g} tokens in",
    "max_new_tokens": "up to {:g} out",
}


def _described(node: Any, phrases: Mapping[str, str]) -> str:
    """What numbers a configuration node has, each in its phrase."""
    known = {name: node.get(name) for name in phrases} if isinstance(node, Mapping) else {}
    return ", ".join(phrases[name].format(value) for name, value in known.items() if isinstance(value, int | float))


def _slots(context: JobContext) -> str:
    """Every slot with its choice and the numbers that it was given."""
    policy = context.find("policy") or {}
    found = {slot: node for slot, node in policy.items() if isinstance(node, Mapping) and "_target_" in node}
    return ", ".join(f"{slot} {_choice(context, slot, node)}" for slot, node in found.items())


def _choice(context: JobContext, slot: str, node: Mapping[str, Any]) -> str:
    name = context.choices.get(f"policy/{slot}") or str(node["_target_"]).rpartition(".")[2]
    options = [
        f"{key}={value:g}" if not isinstance(value, str) else f"{key}={value}"
        for key, value in node.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and not key.startswith("_")
    ]
    return f"{name} ({', '.join(options)})" if options else name


def _latency(summary: Summary) -> Table:
    rows = {
        "time to first token (TTFT)": summary.latency.ttft_s,
        "time between tokens (TBT), mean of a request": summary.latency.tbt_s,
        "service over tokens, mean of a request": summary.latency.token_s,
        "gap between two tokens": summary.latency.gap_s,
        "end to end": summary.latency.end_to_end_s,
        "queueing in the cloud": summary.latency.cloud_wait_s,
    }
    return Table(
        ("latency, ms", "mean", "median", "p90", "p99"),
        tuple((name, *_milliseconds(spread)) for name, spread in rows.items()),
    )


def _milliseconds(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 4
    return tuple(number(1000 * value) for value in (spread.mean, spread.median, spread.p90, spread.p99))


def _figures(records: Records, summary: Summary, context: JobContext) -> Iterator[tuple[str, str]]:
    yield "quality", _quality(records, summary)
    yield "speed", _speed(summary)
    yield "drafts", _drafts(summary)
    if summary.speculation.verifications and summary.speculation.drafted:
        yield "wasted", _waste(summary)
    if summary.exits.share:
        yield "early exit", _exits(summary)
    if summary.ahead.guesses:
        yield "look-ahead", _ahead(summary)
    if summary.speculation.verifications and summary.stalls.link_share is not None:
        yield "stalls", _stalls(summary)
    yield "offloaded", _offloaded(summary, context)
    shares = {origin: count / max(1, summary.tokens) for origin, count in summary.offloading.tokens_by_origin.items()}
    yield "written by", ", ".join(f"{origin} {percent(share)}" for origin, share in shares.items() if share)
    yield "link", _link(summary)
    yield "busy", _busy(summary)
    if records.meta.tiers:
        yield "tiers", "; ".join(f"{name}: {_tier(figures)}" for name, figures in records.meta.tiers.items())
    yield "energy", _energy(summary)
    yield "cloud cost", _cost(records, summary)
    if "mape" in summary.estimator:
        yield "estimator", _estimator(summary.estimator)
    for name, outcome in summary.slo.items():
        yield f"SLO {name}", f"{percent(outcome.violation_rate)} of {outcome.requests} requests violated"


def _tier(figures: Mapping[str, float]) -> str:
    """Of a tier's nodes, while anything was under way."""
    parts = [f"{figures['blocks']:g} blocks on each of {figures['nodes']:g}"]
    parts += [f"{percent(figures[name])} {what}" for name, what in _TIER.items() if name in figures]
    return ", ".join(parts)


_TIER = {"busy": "busy", "memory": "of memory"}


def _quality(records: Records, summary: Summary) -> str:
    scores = [request.quality for request in records.requests if request.quality is not None]
    if not scores:
        return "not measured"
    found = statistics.mean_interval(scores, seed=SEED)
    text = f"{records.meta.quality_metric} {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
    by_task = [f"{task} {value:.2f}" for task, value in summary.quality.by_task.items()]
    tasks = f"; by task: {', '.join(by_task)}" if len(by_task) > 1 else ""
    rouge = "" if summary.quality.rouge_1 is None else f"; ROUGE-1 {summary.quality.rouge_1:.3f}"
    return text + tasks + rouge


def _speed(summary: Summary) -> str:
    speed = summary.throughput
    rule = "complete requests within their SLO class" if summary.slo else "complete requests; no SLO class was set"
    return (
        f"{number(speed.tokens_per_s)} tokens/s, {number(speed.requests_per_s)} requests/s, goodput "
        f"{number(speed.goodput_tokens_per_s)} tokens/s ({rule}); {summary.complete} of {summary.requests} complete"
    )


def _drafts(summary: Summary) -> str:
    drafts = summary.speculation
    if not drafts.drafted and not drafts.judged:
        return "none"
    text = f"{drafts.drafted} tokens drafted, {percent(drafts.wasted_share)} wasted"
    if not drafts.drafted:
        text = "candidates proposed by heads of the cloud's model"
    if not drafts.verifications:
        return f"{text}; none judged by the cloud"
    return (
        f"{text}; {drafts.judged} judged in {drafts.verifications} verifications, {percent(drafts.acceptance_rate)} "
        f"accepted; acceptance length {number(drafts.acceptance_length)}, with the cloud's own token "
        f"{number(drafts.acceptance_length_with_bonus)}"
    )


def _waste(summary: Summary) -> str:
    waste = summary.waste
    dropped = f"; {number(waste.discarded)} more were dropped by a stop rule" if waste.discarded else ""
    time = f"{number(1000 * (waste.wdt_s or 0.0))} ms of drafting, {percent(waste.share)} of all of it"
    return f"{number(waste.tokens)} sent drafts a verification fell, {time}{dropped}"


def _estimator(errors: Mapping[str, float]) -> str:
    r2 = f", R2 {errors['r2']:.3f}" if "r2" in errors else ""
    return (
        f"{errors['batches']:.0f} batches of the cloud differ from what its scheduler expects by "
        f"{percent(errors['mape'])} on average{r2}, bias {number(1000 * errors['bias_s'])} ms"
    )


def _exits(summary: Summary) -> str:
    exits = summary.exits
    return f"{percent(exits.share)} of drafted tokens left before the last layer; {percent(exits.depth)} of layers ran"


def _ahead(summary: Summary) -> str:
    ahead = summary.ahead
    return (
        f"{ahead.guesses} verdicts prepared for; the position was right in {percent(ahead.position_hit_rate)}, "
        f"position and token in {percent(ahead.hit_rate)}"
    )


def _stalls(summary: Summary) -> str:
    stalls = summary.stalls
    return (
        f"devices stood still for {percent(stalls.link_share)} of their time because of the link, for "
        f"{percent(stalls.cloud_share)} because of the cloud"
    )


def _offloaded(summary: Summary, context: JobContext) -> str:
    asked = context.find("policy.offload.budget")
    budget = f" (budget {percent(asked)})" if isinstance(asked, int | float) else ""
    shares = summary.offloading
    known = shares.chunk_share is not None
    chunks = f"{percent(shares.chunk_share)} of draft chunks{budget}" if known else "no draft chunks"
    return f"{chunks}; {percent(shares.token_share)} of the text's tokens judged or written by the cloud"


def _link(summary: Summary) -> str:
    use, requests = summary.resources, summary.requests
    return (
        f"{size(use.uplink_nbytes / requests)} up, {size(use.downlink_nbytes / requests)} down and "
        f"{number(use.uplink_messages / requests)} messages up a request"
    )


def _busy(summary: Summary) -> str:
    use = summary.resources
    return (
        f"devices {number(use.device_busy_s)} s, cloud {number(use.cloud_busy_s)} s for {use.cloud_rows} rows, "
        f"requests queued there for {number(use.cloud_wait_s)} s in all"
    )


def _energy(summary: Summary) -> str:
    use = summary.resources
    return f"{number(use.device_j_per_token)} J a token on the device, {number(use.cloud_j_per_token)} J in the cloud"


def _cost(records: Records, summary: Summary) -> str:
    factor, cost = records.meta.packing_factor, summary.cost
    shares = f"W {number(cost.w_verified)} as tokens verified, {number(cost.w_written)} as tokens written by the LLM"
    if factor is None or cost.verified_s is None or cost.written_s is None:
        return f"c = T W / Pf is not known for want of {'a packing factor' if factor is None else 'a TBT'}; {shares}"
    costs = " and ".join(f"{number(1000 * one)} ms" for one in (cost.verified_s, cost.written_s))
    return f"c = T W / Pf per token: {costs} with {shares}; Pf {factor.value:g} ({factor.source})"
