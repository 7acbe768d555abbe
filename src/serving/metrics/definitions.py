"""Every metric of a run: key, unit, meaning and formula. Terminal, MLflow, exhibits, search and page read them here.

This is plain data: formulas name attributes of `pipeline.report.records.RequestRecord`, and
`pipeline.report.summary` computes them. Adding an entry to `METRICS` is all that a new metric needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

ORIGINS = ("device", "offline", "accepted", "cloud_accepted", "corrected", "bonus", "cloud")
"""The origin of a token. The device wrote it: by its own choice, without a cloud (offline), or as a draft that the
cloud accepted. The cloud wrote it: as a draft of its own that its target accepted (cloud_accepted), in place of a
rejected draft (corrected), after an accepted one (bonus), or without a draft.
"""
CLOUD_ORIGINS = ("cloud_accepted", "corrected", "bonus", "cloud")
"""Tokens that the cloud wrote; the device wrote the others, verified or not."""
STATISTICS = ("mean", "median", "p90", "p99")


@dataclass(frozen=True)
class Count:
    """Number of requests for which `attribute` is true, or number of each value of `by`."""

    attribute: str = ""
    by: str = ""

    def __str__(self) -> str:
        return f"number by {self.by}" if self.by else f"number of {self.attribute or 'all'} requests"


@dataclass(frozen=True)
class Total:
    """Sum over the requests; with `all_known` unknown if it is unknown for one of them."""

    attribute: str
    all_known: bool = False

    def __str__(self) -> str:
        return f"sum of {self.attribute}"


@dataclass(frozen=True)
class Mean:
    """Mean over the requests that have the attribute; with `by` for each of its values, which replaces `*`."""

    attribute: str
    by: str = ""

    def __str__(self) -> str:
        return f"mean of {self.attribute}" + (f" by {self.by}" if self.by else "")


@dataclass(frozen=True)
class Ratio:
    """Sum of `part` over sum of `whole`, over the requests that have `part`; with `all_known` only if all of them do.

    `empty` is the value without any `whole`; None: not known.
    """

    part: str
    whole: str
    all_known: bool = False
    empty: float | None = None

    def __str__(self) -> str:
        return f"{self.part} / {self.whole}"


@dataclass(frozen=True)
class Rate:
    """Sum over the seconds from the first arrival to the last end."""

    attribute: str

    def __str__(self) -> str:
        return f"{self.attribute} / seconds of the run"


@dataclass(frozen=True)
class Distribution:
    """`STATISTICS` of an attribute, or of the items of one that is a list."""

    attribute: str

    def __str__(self) -> str:
        return self.attribute


@dataclass(frozen=True)
class SlaPercentiles:
    """Time that a share of an attribute's items, in percent, does not exceed; the percentage replaces `*`."""

    attribute: str

    def __str__(self) -> str:
        return self.attribute


@dataclass(frozen=True)
class SlaShares:
    """Share of an attribute's items within a time in seconds, which replaces `*`."""

    attribute: str

    def __str__(self) -> str:
        return self.attribute


@dataclass(frozen=True)
class BusyPeriods:
    """Mean length of the periods that the requests cover together."""

    def __str__(self) -> str:
        return "mean union of arrived_s to ended_s"


@dataclass(frozen=True)
class CloudUse:
    """Busy time of the cloud's nodes over the time with any request, mean over the nodes; the chips of a draft model
    that has its own count as a node.
    """

    def __str__(self) -> str:
        return "cloud_busy_s / union of arrived_s to ended_s / nodes of the cloud"


@dataclass(frozen=True)
class CloudCost:
    """Mean time of a token over the packing factor of the cloud's model (Synera, section 6.1), times a `share`.

    `share` and `token_s` are metrics' keys.
    """

    share: str
    token_s: str

    def __str__(self) -> str:
        return f"{self.token_s} / packing factor x {self.share}"


@dataclass(frozen=True)
class Combination:
    """`combine` of sums of attributes: numbers, or arrays of numbers."""

    attributes: tuple[str, ...]
    combine: Callable[..., Any]
    text: str

    def __str__(self) -> str:
        return self.text


Formula: TypeAlias = (
    Count
    | Total
    | Mean
    | Ratio
    | Rate
    | Distribution
    | SlaPercentiles
    | SlaShares
    | BusyPeriods
    | CloudUse
    | CloudCost
    | Combination
    | str
)
"""The computation of a metric from the requests' records; a text names another source."""
MEAN_TBT = "latency/tbt_s/mean"
MEAN_SERVICE = "latency/service_s_per_token/mean"


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    key      its name in MLflow, job.json, comparison.csv, exhibits and page; `*` is a name that the data give
    printed  how a value is printed: ms (of seconds), % (of a share), B (B, kB or MB), count (an integer), or number
    name     what a job's summary calls it: a row of the latency table for percentiles, else a line of its own
    label    what the page, and a validation's table, call it
    heading  of its column in a sweep's table
    """

    key: str
    unit: str
    meaning: str
    formula: Formula
    better: Literal["higher", "lower", ""] = ""
    printed: Literal["ms", "%", "B", "count", "number", ""] = ""
    name: str = ""
    label: str = ""
    heading: str = ""

    @property
    def style(self) -> str:
        """`printed`, or what the unit suggests."""
        return self.printed or {"s": "ms", "share": "%", "B": "B"}.get(self.unit, "number")

    @property
    def scale(self) -> float:
        """The factor from the metric's unit to `printed_unit`."""
        return {"ms": 1000.0, "%": 100.0}.get(self.style, 1.0)

    @property
    def printed_unit(self) -> str:
        """ms and % where `printed` says so, else the metric's unit."""
        return self.style if self.style in ("ms", "%") else self.unit

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of each number."""
        if isinstance(self.formula, Distribution):
            return tuple(f"{self.key}/{statistic}" for statistic in STATISTICS)
        return (self.key,)


def _wasted_draft_s(rejected: Any, draft_s: Any, drafted: Any, whole: Any) -> Any:
    """Drafting time of the rejected tokens over `whole`, at the mean time of a draft; 0 without drafts."""
    return rejected * (draft_s / (drafted + (drafted == 0))) / whole


UTILISATION, OVERHEAD, BATCH_TIMING = (
    f"measured: serving.metrics.{name}" for name in ("utilisation", "overhead", "batch_timing")
)
PARTITION = "computed: serving.policy.partition.division"
METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("requests", "requests", "Requests that arrived.", Count(), printed="count"),
    MetricSpec("complete", "requests", "Requests that were answered in full: neither cancelled nor failed.",
               Count("complete"), "higher", printed="count"),
    MetricSpec("tokens", "tokens", "Tokens of the text, the end token included: the cloud's and the device's own.",
               Total("num_tokens"), printed="count", label="tokens"),
    MetricSpec("latency/ttft_s", "s", "Time from a request's arrival at its device to its first token.",
               Distribution("ttft_s"), "lower", name="time to first token (TTFT)", label="TTFT", heading="TTFT ms"),
    MetricSpec("latency/tbt_s", "s", "A request's mean time between tokens since the first; tokens that arrive "
               "together count 0 between them.", Distribution("mean_tbt_s"), "lower",
               name="time between tokens (TBT), mean of a request", label="TBT", heading="TBT ms"),
    MetricSpec("latency/service_s_per_token", "s", "Time from the device's start on a request to its end, over the "
               "request's tokens: unlike gaps it does not depend on how many tokens arrive at once.",
               Distribution("service_s_per_token"), "lower", name="service over tokens, mean of a request",
               label="service a token",
               heading="service\nms/token"),
    MetricSpec("latency/itl_s", "s", "Gap between two tokens that follow one another (inter-token latency).",
               Distribution("tbt_s"), "lower", name="gap between two tokens"),
    MetricSpec("latency/end_to_end_s", "s", "Time from a request's arrival to its end.", Distribution("end_to_end_s"),
               "lower", name="end to end", label="end to end", heading="end to end ms"),
    MetricSpec("latency/cloud_queue_s", "s", "A request's queueing in the cloud, all its rounds together.",
               Distribution("cloud_queue_s"), "lower", name="queueing in the cloud"),
    MetricSpec("latency/verification_s", "s", "Time in the cloud for a verification, queueing included; a request's "
               "mean.", Distribution("verification_s"), "lower"),
    MetricSpec("throughput/tokens_per_s", "tokens/s", "Tokens of all texts a second, from the first arrival to the "
               "last end.", Rate("num_tokens"), "higher"),
    MetricSpec("throughput/requests_per_s", "requests/s", "Requests a second that were answered in full.",
               Rate("complete"), "higher"),
    MetricSpec("throughput/verifications_per_s", "1/s", "Verifications a second.", Rate("chunks_verified")),
    MetricSpec("throughput/goodput_tokens_per_s", "tokens/s", "Tokens a second of complete requests that met their SLO "
               "class; without classes, of complete requests.", Rate("num_good_tokens"), "higher",
               heading="goodput\ntokens/s"),
    MetricSpec("throughput/slo_violation_rate", "share", "Violated requests over requests with an SLO class.",
               Mean("slo_violated"), "lower", heading="SLO\nviol. %"),
    MetricSpec("throughput/busy_period_s", "s", "Mean length of the periods in which any request was under way.",
               BusyPeriods()),
    MetricSpec("speculation/drafted", "tokens", "Tokens that were drafted.", Total("drafted"), printed="count"),
    MetricSpec("speculation/verified", "tokens", "Drafts that the cloud verified.", Total("drafts_verified"),
               printed="count"),
    MetricSpec("speculation/accepted", "tokens", "Drafts that the cloud accepted.", Total("drafts_accepted"),
               printed="count"),
    MetricSpec("speculation/replaced", "tokens", "Drafts that were not sent: the cloud wrote in their place "
               "(verify=replace). They count neither as verified nor as rejected.", Total("drafts_replaced"), "lower",
               printed="count"),
    MetricSpec("speculation/verifications", "", "Verifications by the cloud.", Total("chunks_verified"),
               printed="count"),
    MetricSpec("speculation/acceptance_rate", "share", "Accepted drafts over verified drafts.",
               Ratio("drafts_accepted", "drafts_verified"), "higher", heading="accepted\n%"),
    MetricSpec("speculation/acceptance_length", "tokens", "Accepted drafts in a verification, without the token that "
               "the cloud adds.", Ratio("drafts_accepted", "chunks_verified"), "higher", heading="accept.\nlength"),
    MetricSpec("speculation/acceptance_length_with_bonus", "tokens", "The same with the cloud's token, correction or "
               'bonus: "Accept" of HAT, Table 4.', Ratio("num_accepted_with_bonus", "chunks_verified"), "higher",
               heading="with\nbonus"),
    MetricSpec("speculation/wasted_share", "share", "Drafts that are not in the text, over drafts.",
               Ratio("drafts_unused", "drafted"), "lower"),
    MetricSpec("waste/rejected_tokens", "tokens", "Rejected drafts in a verification (WISP, Eq. 7 to 9).",
               Ratio("num_rejected", "chunks_verified"), "lower"),
    MetricSpec("waste/wdt_s", "s", "Their drafting time, at the mean time of a draft.",
               Combination(("num_rejected", "draft_s", "num_drafted_or_discarded", "chunks_verified"),
                           _wasted_draft_s, "num_rejected x draft_s / num_drafted_or_discarded / chunks_verified"),
               "lower"),
    MetricSpec("waste/time_share", "share", "That time over all drafting time; unknown where none was recorded.",
               Combination(("num_rejected", "draft_s", "num_drafted_or_discarded", "draft_s"), _wasted_draft_s,
                           "num_rejected / num_drafted_or_discarded"),
               "lower"),
    MetricSpec("waste/discarded_tokens", "tokens", "Drafts in a verification that a stop rule dropped; their time is "
               "not in wdt_s.", Ratio("discarded_tokens", "chunks_verified"), "lower"),
    MetricSpec("early_exit/token_share", "share", "Drafted tokens that left before the last layer.",
               Ratio("early_exit_tokens", "drafted")),
    MetricSpec("early_exit/layer_share", "share", "Layers that ran for a drafted token, of all.",
               Ratio("layer_share_sum", "drafted"), "lower"),
    MetricSpec("lookahead/attempts", "", "Verdicts for which the device drafted ahead while it waited.",
               Total("lookahead_attempts"), printed="count"),
    MetricSpec("lookahead/position_hit_rate", "share", "Of these, the ones with the assumed position.",
               Ratio("lookahead_position_hits", "lookahead_attempts"), "higher"),
    MetricSpec("lookahead/hit_rate", "share", "Of these, the ones with the assumed position and token, which save "
               "time.", Ratio("lookahead_hits", "lookahead_attempts"), "higher"),
    MetricSpec("stalls/link_share", "share", "Service time in which the device waited for the link; unknown without "
               "time lines.", Ratio("link_stall_s", "service_s"), "lower"),
    MetricSpec("stalls/cloud_share", "share", "Service time in which the device waited for the cloud.",
               Ratio("cloud_stall_s", "service_s"), "lower"),
    MetricSpec("sla/prefill_128_s/p*", "s", "Time to first token per 128 tokens of the prompt (HAT, section 4.2).",
               SlaPercentiles("prefill_128_s"), "lower"),
    MetricSpec("sla/prefill_128_s/within_*", "share", "Times to first token per 128 tokens of the prompt that are at "
               "most so many seconds (HAT, section 4.2).",
               SlaShares("prefill_128_s"), "higher"),
    MetricSpec("sla/decode_10_s/p*", "s", "Time for ten tokens behind the first (HAT, section 4.2).",
               SlaPercentiles("decode_10_s"), "lower"),
    MetricSpec("sla/decode_10_s/within_*", "share", "Times for ten tokens behind the first that are at most so many "
               "seconds (HAT, section 4.2).",
               SlaShares("decode_10_s"), "higher"),
    MetricSpec("offloading/chunk_share", "share", "Offloaded draft chunks over draft chunks.",
               Ratio("chunks_offloaded", "chunks"), heading="chunks\nasked %"),
    MetricSpec("offloading/token_share", "share", "Tokens of the text that the cloud accepted or wrote.",
               Ratio("num_accepted_or_cloud_tokens", "num_tokens", empty=0.0), heading="tokens\noffl. %"),
    MetricSpec("offloading/tokens_by_origin/*", "tokens", f"Tokens of each origin: {', '.join(ORIGINS)}.",
               Count(by="origins"), printed="count"),
    MetricSpec("breakdown/device_s", "s", "The chip of a request's device is at work (token routing, Table 1: SLM "
               "inference time).", Mean("device_busy_s"), "lower"),
    MetricSpec("breakdown/remote_s", "s", "The rest of a request's service: communication and the cloud (Comm + LLM "
               "inference).", Mean("remote_s"), "lower"),
    MetricSpec("breakdown/remote_s_per_call", "s", "The same for an offloaded chunk.",
               Ratio("remote_s", "chunks_offloaded"), "lower"),
    MetricSpec("breakdown/device_s_per_token", "s", "The chip's time for a token that the device wrote: TBT for SLM.",
               Ratio("device_busy_s", "num_device_tokens"), "lower"),
    MetricSpec("breakdown/cloud_tokens", "tokens", "Tokens of a request that the cloud wrote (routing number).",
               Mean("num_cloud_tokens")),
    MetricSpec("resources/uplink_nbytes", "B", "Bytes from devices to the cloud: payload and 16 bytes of header a "
               "message, as the policy counts them.", Total("uplink_nbytes"), "lower", label="up"),
    MetricSpec("resources/downlink_nbytes", "B", "Bytes from the cloud to devices, counted in the same way.",
               Total("downlink_nbytes"), "lower", label="down"),
    MetricSpec("resources/uplink_messages", "messages", "Messages from devices to the cloud.", Total("uplink_messages"),
               "lower"),
    MetricSpec("resources/device_busy_s", "s", "Time that the devices' chips computed.", Total("device_busy_s"),
               "lower", printed="number", label="devices busy"),
    MetricSpec("resources/cloud_busy_s", "s", "Time that the cloud's chips computed: a request's share, by tokens, of "
               "each batch that it was in.", Total("cloud_busy_s"), "lower", printed="number", label="cloud busy"),
    MetricSpec("resources/cloud_queue_s", "s", "Time that requests queued in the cloud.", Total("cloud_queue_s"),
               "lower", printed="number"),
    MetricSpec("resources/cloud_forward_tokens", "tokens", "Tokens that the cloud ran: prompts, uncached tokens, "
               "drafts.", Total("cloud_forward_tokens"), "lower", printed="count"),
    MetricSpec("resources/device_j_per_token", "J/token", "The device's energy, without its radio, over the tokens of "
               "the text; unknown where a chip's power is.", Ratio("device_energy_j", "num_tokens", all_known=True),
               "lower", heading="J/token\ndevice"),
    MetricSpec("resources/radio_j_per_token", "J/token", "The energy of the device's radio over the tokens of the "
               "text; unknown where a link's radio is, 0 without messages.",
               Ratio("radio_energy_j", "num_tokens", all_known=True), "lower", heading="J/token\nradio"),
    MetricSpec("resources/device_total_j_per_token", "J/token", "The energy of the device's chip and radio together "
               "over the tokens of the text.", Ratio("device_total_energy_j", "num_tokens", all_known=True), "lower",
               heading="J/token\nchip+radio"),
    MetricSpec("resources/cloud_j_per_token", "J/token", "The cloud's energy over the tokens of the text.",
               Ratio("cloud_energy_j", "num_tokens", all_known=True), "lower", heading="J/token\ncloud"),
    MetricSpec("resources/device_energy_j", "J", "The chip's whole power budget while it computes and its idle power "
               "while it waits; no radio.", Total("device_energy_j", all_known=True), "lower", label="device energy"),
    MetricSpec("resources/radio_energy_j", "J", "The radio of the devices: what each byte takes, the time with a "
               "message in the air, the tail after it, and waking up.", Total("radio_energy_j", all_known=True),
               "lower", label="radio energy"),
    MetricSpec("resources/device_total_energy_j", "J", "Chip and radio of the devices together.",
               Total("device_total_energy_j", all_known=True), "lower"),
    MetricSpec("resources/cloud_energy_j", "J", "The power budget of the cloud's chips for the time that they computed "
               "for the requests; idle time does not count.", Total("cloud_energy_j", all_known=True), "lower",
               label="cloud energy"),
    MetricSpec("resources/cloud_busy_share", "share", "Time with any request in which a node of the cloud "
               "computed, mean over its nodes: the load at which a cost is stated.", CloudUse()),
    MetricSpec("cost/usd_per_million_tokens", "USD/M tokens", "Busy seconds of the cloud's chips at their price, over "
               "the tokens of the text; idle time costs nothing (over resources/cloud_busy_share: chips rented for the "
               "whole run). Unknown where a chip has no price.", Ratio("cloud_micro_usd", "num_tokens", all_known=True),
               "lower", label="cloud cost", heading="cost USD\n/M tokens"),
    MetricSpec("cost/chip_s_per_token", "s", "Busy seconds of the cloud's chips over the tokens of the text.",
               Ratio("cloud_chip_s", "num_tokens"), "lower", label="cloud busy a token"),
    MetricSpec("cost/w_verified", "", "Target tokens computed over tokens of the text: W as tokens verified; above 1 "
               "where many drafts are rejected.", Ratio("num_verified_or_cloud_tokens", "num_tokens", empty=0.0),
               "lower"),
    MetricSpec("cost/w_generated", "share", "Share of the tokens that the cloud wrote: routed tokens, "
               "corrections, bonus tokens, drafts of its own; W as tokens generated.",
               Ratio("num_cloud_tokens", "num_tokens", empty=0.0),
               "lower", printed="number", label="by the cloud"),
    MetricSpec("cost/verified_s", "s", "c = T W / Pf a token (Synera, section 6.1) with W as tokens verified and T as "
               "TBT.", CloudCost("cost/w_verified", MEAN_TBT), "lower"),
    MetricSpec("cost/generated_s", "s", "c = T W / Pf a token (Synera, section 6.1): T is TBT, W the share that the "
               "cloud wrote, Pf the packing factor of its model; in time of all the GPUs that one Llama-2-70B takes.",
               CloudCost("cost/w_generated", MEAN_TBT), "lower"),
    MetricSpec("cost/verified_service_s", "s", "c = T W / Pf with W as tokens verified and T as service time a token, "
               "which unlike TBT does not depend on how many tokens arrive at once.",
               CloudCost("cost/w_verified", MEAN_SERVICE), "lower"),
    MetricSpec("cost/generated_service_s", "s", "c = T W / Pf with W as the share that the cloud wrote and T as "
               "service time a token.", CloudCost("cost/w_generated", MEAN_SERVICE), "lower"),
    MetricSpec("quality/mean", "score", "The data set's score, mean over the requests that have one.", Mean("quality"),
               "higher"),
    MetricSpec("quality/rouge_1", "score", "ROUGE-1 against the reference, mean over the requests that have one: the "
               "score of Synera's summaries and sensor questions.", Mean("rouge_1"), "higher", heading="ROUGE-1"),
    MetricSpec("quality/rouge_1_by_task/*", "score", "Mean ROUGE-1 of each task.", Mean("rouge_1", by="task"),
               "higher"),
    MetricSpec("text/rouge_1", "score", "ROUGE-1 with what an exhibit's reference row wrote for the same prompt.",
               Mean("reference_rouge_1"), "higher"),
    MetricSpec("text/same_prefix", "share", "Tokens of that text before the first one that differs, over its tokens.",
               Mean("reference_prefix"), "higher"),
    MetricSpec("text/equal", "share", "Answers that are that text, token by token.", Mean("reference_equal"), "higher"),
    MetricSpec("quality/by_task/*", "score", "Mean score of each task.", Mean("quality", by="task"), "higher"),
    MetricSpec("slo/*/requests", "requests", "Requests of an SLO class.", Count(by="slo"), printed="count"),
    MetricSpec("slo/*/violation_rate", "share", "Violated requests of the class over its requests.",
               Mean("slo_violated", by="slo"), "lower"),
    MetricSpec("tiers/*/nodes", "nodes", "Nodes of a testbed's tier.", UTILISATION, printed="count"),
    MetricSpec("tiers/*/blocks", "blocks", "Blocks of the timed model on each of them.", UTILISATION),
    MetricSpec("tiers/*/utilisation", "share", "Busy time over the time with any session, mean over the tier's nodes, "
               "and over both sets of chips where the draft model has its own.", UTILISATION),
    MetricSpec("tiers/*/memory_share", "share", "Weights and peak caches over the memory of a node's chips, mean over "
               "the tier's nodes.", UTILISATION),
    MetricSpec("partition/slowest_stage_s", "s", "A request's time on the slowest tier: the computing latency of "
               "Hyperion's Eq. 8.", PARTITION, "lower"),
    MetricSpec("partition/communication_s", "s", "A request's time on the links between tiers (Hyperion, Eq. 9).",
               PARTITION, "lower"),
    MetricSpec("partition/printed_latency_s", "s", "Latency as Hyperion's Eq. 10a has it: the slowest tier and the "
               "links, for a request that meets no other.", PARTITION, "lower"),
    MetricSpec("overhead/device_ms_per_token", "ms", "Decisions of all devices per token of text, on a wall clock.",
               OVERHEAD, "lower"),
    MetricSpec("overhead/cloud_share", "share", "Decisions over computation in the cloud, on a wall clock.", OVERHEAD,
               "lower"),
    MetricSpec("estimator/batches", "", "Batches of the cloud that the scheduler's estimator is compared with.",
               BATCH_TIMING, printed="count"),
    MetricSpec("estimator/mape", "share", "Mean absolute percentage error of the estimated batch time (WISP, section "
               "5.5).", BATCH_TIMING, "lower"),
    MetricSpec("estimator/mae_s", "s", "Mean absolute error.", BATCH_TIMING, "lower"),
    MetricSpec("estimator/bias_s", "s", "Estimated minus measured time, mean.", BATCH_TIMING),
    MetricSpec("estimator/batch_s", "s", "Measured time of a batch, mean (HAT, Fig. 8).", BATCH_TIMING),
    MetricSpec("estimator/batch_std_s", "s", "Its standard deviation.", BATCH_TIMING),
    MetricSpec("estimator/batch_tokens", "tokens", "Tokens of a batch, mean.", BATCH_TIMING),
    MetricSpec("estimator/r2", "", "R2 of the estimate over batches.", BATCH_TIMING, "higher"),
    MetricSpec("stage/*", "", "A number that a stage wrote to metrics.json: stage/NAME/METRIC.", "the stage's own"),
)  # fmt: skip
COMPARED = (
    "quality/rouge_1", "latency/ttft_s/median", "latency/tbt_s/mean", "latency/service_s_per_token/mean",
    "latency/end_to_end_s/mean", "cost/usd_per_million_tokens", "offloading/token_share", "offloading/chunk_share",
    "resources/device_j_per_token", "resources/radio_j_per_token", "resources/device_total_j_per_token",
    "resources/cloud_j_per_token", "speculation/acceptance_rate", "speculation/acceptance_length",
    "speculation/acceptance_length_with_bonus",
    "throughput/goodput_tokens_per_s", "throughput/slo_violation_rate", "latency/tbt_s/p99",
)  # fmt: skip
"""The columns of a sweep's table; one that no job has a value for is left out."""
HEADLINE = (
    "quality/mean", "quality/rouge_1", "latency/ttft_s/median", "latency/tbt_s/mean", "latency/tbt_s/p99",
    "latency/service_s_per_token/mean", "latency/end_to_end_s/median", "cost/usd_per_million_tokens",
    "throughput/goodput_tokens_per_s", "throughput/slo_violation_rate", "offloading/token_share",
    "speculation/acceptance_rate", "resources/device_j_per_token", "resources/device_total_j_per_token",
    "resources/cloud_j_per_token", "resources/uplink_nbytes",
)  # fmt: skip
"""The metrics of a run in MLflow, what matters most first; each has its unit in its key or is a score."""
PAGE = (
    "latency/ttft_s", "latency/tbt_s", "cost/w_generated", "tokens", "resources/uplink_nbytes",
    "resources/downlink_nbytes", "resources/device_energy_j", "resources/cloud_energy_j", "resources/cloud_busy_s",
    "cost/usd_per_million_tokens",
)  # fmt: skip
"""The metrics of a run that the page shows, of one request so far."""
CLOCK_FREE = (
    "requests", "tokens", "speculation/verified", "speculation/accepted", "speculation/replaced",
    "speculation/verifications", "speculation/acceptance_rate", "speculation/acceptance_length",
    "speculation/acceptance_length_with_bonus", "waste/rejected_tokens", "waste/discarded_tokens",
    "early_exit/token_share", "early_exit/layer_share", "offloading/chunk_share", "offloading/token_share",
    "offloading/tokens_by_origin/*", "breakdown/cloud_tokens", "resources/uplink_nbytes", "resources/downlink_nbytes",
    "resources/uplink_messages", "cost/w_verified", "cost/w_generated", "quality/mean", "quality/rouge_1",
    "quality/rouge_1_by_task/*", "quality/by_task/*", "text/rouge_1", "text/same_prefix", "text/equal",
    "slo/*/requests", "tiers/*/nodes", "overhead/device_ms_per_token", "overhead/cloud_share",
)  # fmt: skip
"""The metrics that no chip's speed enters: tokens, texts and bytes, and decisions, which a wall clock times.

All others depend on the clock: how much is drafted ahead, too, and how blocks are divided over tiers. Under a policy
that drafts by its load (`cloud_speculative`) those of speculation do as well.
"""


def find(key: str) -> MetricSpec | None:
    """The metric that the key of a number belongs to; None for an unknown key."""
    return next((metric for metric in METRICS if any(fnmatchcase(key, known) for known in metric.keys)), None)


def metric(key: str) -> MetricSpec:
    """The metric with this `key`. Raises KeyError."""
    return {one.key: one for one in METRICS}[key]


def rests_on_clock(key: str) -> bool:
    """True if the metric changes with how long chips take.

    What is not defined here is a stage's own number, and counts as such: a stage may compute anything.
    """
    found = find(key)
    return found is None or found.key not in CLOCK_FREE


def all_keys() -> list[str]:
    return [key for one in METRICS for key in one.keys]
