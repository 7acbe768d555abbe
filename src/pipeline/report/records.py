"""Reads a `serve` artifact: requests, time lines, drafts, and the metadata of the run.

requests.parquet   one row a request        -> RequestRecord
timeline.parquet   one row a span of work   -> TimelineSpan
chunks.parquet     one row a draft          -> ChunkRecord
meta.json          about the run            -> RunMetadata
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import UserError
from serving.metrics.definitions import CLOUD_ORIGINS

if TYPE_CHECKING:
    import pyarrow as pa

RecordT = TypeVar("RecordT")
_NOT_RECORDED = {"recorded": False}
"""Metadata of a field that a file has no column for."""


class RecordsError(UserError):
    """A `serve` artifact is missing, incomplete or unreadable."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; times are seconds of the run's clock, `token_times_s` one for each token that the user saw."""

    request: str
    prompt_id: str
    task: str
    device: str
    chip: str
    mode: str
    slo: str | None
    slo_tokens_per_s: float | None
    slo_ttft_s: float | None
    ending: str
    prompt_tokens: int
    tokens: list[int]
    text: str
    origins: list[str]
    arrived_s: float
    started_s: float | None
    ended_s: float | None
    token_times_s: list[float]
    ttft_s: float | None
    tbt_s: list[float]
    drafted: int
    drafts_verified: int
    """Drafted tokens that the cloud verified."""
    drafts_accepted: int
    drafts_replaced: int
    """Drafted tokens that were not sent, because the cloud wrote in their place (verify=replace)."""
    drafts_unused: int
    """Drafted tokens that are not in the text."""
    early_exit_tokens: int
    """Drafted tokens that were read off before the last layer."""
    layer_share_sum: float
    """The share of the layers that ran for a drafted token, summed over the drafted tokens."""
    lookahead_attempts: int
    """Verdicts for which the device drafted ahead. In `lookahead_position_hits` of them it guessed the position of the
    rejection right, in `lookahead_hits` the position and the token.
    """
    lookahead_position_hits: int
    lookahead_hits: int
    link_stall_s: float | None
    """Seconds that the device idled because of the link; None without a time line (runtime.detail)."""
    cloud_stall_s: float | None
    cloud_residence_s: float | None
    """Seconds that its verifications spent in the cloud, queued or computed; None without a time line."""
    chunks: int
    chunks_offloaded: int
    """Draft chunks about which the cloud was asked. It judged `chunks_verified` of them, and wrote in place of the
    others, which stayed on the device.
    """
    chunks_verified: int
    uplink_nbytes: int
    downlink_nbytes: int
    uplink_messages: int
    device_busy_s: float
    cloud_busy_s: float
    cloud_forward_tokens: int
    cloud_queue_s: float
    device_energy_j: float | None
    """The chip's: busy and idle. The radio's is `radio_energy_j`."""
    radio_energy_j: float | None
    """0 without messages; None where the link's radio is not known."""
    cloud_energy_j: float | None
    cloud_chip_s: float
    """Busy seconds of the cloud's chips: `cloud_busy_s`, times the chips of each node."""
    cloud_usd: float | None
    """Those seconds at the chips' prices; None if a chip has none."""
    quality: float | None
    rouge_1: float | None
    finished: bool
    discarded_tokens: int = 0
    """Drafted tokens that a stop rule dropped before the draft was sent."""
    draft_s: float = 0.0
    """Seconds of drafting, on the device or in the cloud."""
    reference_rouge_1: float | None = field(default=None, metadata=_NOT_RECORDED)
    """ROUGE-1 with the text of an exhibit's reference row for the same prompt, see `pipeline.report.text_reference`."""
    reference_prefix: float | None = field(default=None, metadata=_NOT_RECORDED)
    """Share of that text's tokens that come before the first one that differs."""
    reference_equal: bool | None = field(default=None, metadata=_NOT_RECORDED)
    """True if it is that text."""

    @property
    def complete(self) -> bool:
        """True if the user got the whole answer: it was neither cancelled nor failed."""
        return self.ending == "complete"

    @property
    def end_to_end_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    @property
    def service_s(self) -> float | None:
        """Seconds from the device's start on the request to its end."""
        return None if self.ended_s is None or self.started_s is None else self.ended_s - self.started_s

    @property
    def service_s_per_token(self) -> float | None:
        """`service_s` over the tokens; unlike the gaps it does not depend on how many tokens arrive at once."""
        return None if self.service_s is None or not self.tokens else self.service_s / len(self.tokens)

    @property
    def verification_s(self) -> float | None:
        """Mean seconds in the cloud of a verification; None without verifications or without a time line."""
        known = self.cloud_residence_s is not None and self.chunks_verified
        return (self.cloud_residence_s or 0.0) / self.chunks_verified if known else None

    @property
    def mean_tbt_s(self) -> float | None:
        """None for a text of one token, which has no gap."""
        return sum(self.tbt_s) / len(self.tbt_s) if self.tbt_s else None

    @property
    def tokens_per_s(self) -> float:
        """Speed from the first to the last token that the user saw; infinite for a text of one token."""
        gaps = len(self.token_times_s) - 1
        duration_s = self.token_times_s[-1] - self.token_times_s[0] if gaps > 0 else 0.0
        return gaps / duration_s if duration_s > 0 else inf

    @property
    def promised_tokens_per_s(self) -> float:
        """The speed that an SLO class is about: from the request on, so that the wait counts (WISP, section 5.3).

        From the first token on if the class promises when that comes. Infinite for a text without duration.
        """
        if self.slo_ttft_s is not None:
            return self.tokens_per_s
        duration_s = self.token_times_s[-1] - self.arrived_s if self.token_times_s else 0.0
        return len(self.token_times_s) / duration_s if duration_s > 0 else inf

    @property
    def meets_slo(self) -> bool:
        """Complete, and within its class's speed and first-token time as far as there are any (WISP, section 5.1)."""
        slow = self.slo_tokens_per_s is not None and self.promised_tokens_per_s < self.slo_tokens_per_s
        limit_s = inf if self.slo_ttft_s is None else self.slo_ttft_s
        late = (inf if self.ttft_s is None else self.ttft_s) > limit_s
        return self.complete and not slow and not late

    @property
    def slo_violated(self) -> bool | None:
        """None without an SLO class."""
        return not self.meets_slo if self.slo else None

    @property
    def prefill_128_s(self) -> float | None:
        """Time to first token per 128 tokens of the prompt."""
        return 128 * self.ttft_s / self.prompt_tokens if self.ttft_s is not None and self.prompt_tokens else None

    @property
    def decode_10_s(self) -> list[float]:
        """Time of each ten tokens behind the first."""
        times_s = self.token_times_s
        return [end_s - begin_s for begin_s, end_s in zip(times_s[0::10], times_s[10::10], strict=False)]

    @property
    def remote_s(self) -> float:
        """The part of its service during which the device's chip was idle."""
        return max(0.0, (self.service_s or 0.0) - self.device_busy_s)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_good_tokens(self) -> int:
        return len(self.tokens) if self.meets_slo else 0

    @property
    def num_cloud_tokens(self) -> int:
        return sum(origin in CLOUD_ORIGINS for origin in self.origins)

    @property
    def num_device_tokens(self) -> int:
        return len(self.tokens) - self.num_cloud_tokens

    @property
    def num_accepted_or_cloud_tokens(self) -> int:
        return self.num_cloud_tokens + self.origins.count("accepted")

    @property
    def num_verified_or_cloud_tokens(self) -> int:
        """Tokens that the cloud's model computed for the text."""
        return self.drafts_verified + self.num_cloud_tokens - self.origins.count("cloud_accepted")

    @property
    def device_total_energy_j(self) -> float | None:
        """Chip and radio together; None if one of them is not known."""
        if self.device_energy_j is None or self.radio_energy_j is None:
            return None
        return self.device_energy_j + self.radio_energy_j

    @property
    def cloud_micro_usd(self) -> float | None:
        """Millionths of a US dollar."""
        return None if self.cloud_usd is None else 1e6 * self.cloud_usd

    @property
    def num_accepted_with_bonus(self) -> int:
        return self.drafts_accepted + self.origins.count("corrected") + self.origins.count("bonus")

    @property
    def num_rejected(self) -> int:
        return self.drafts_verified - self.drafts_accepted

    @property
    def num_drafted_or_discarded(self) -> int:
        return self.drafted + self.discarded_tokens


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One piece of a request's time line; `amount` is tokens, or bytes on the link's lanes."""

    request: str
    lane: str
    start_s: float
    end_s: float
    amount: int


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One draft of `num_tokens` tokens at position `position`.

    `accepted` is None for a draft that the device kept; `replaced` is true for one that stayed on the device because
    the cloud wrote in its place.
    """

    request: str
    position: int
    num_tokens: int
    accepted: int | None
    replaced: bool
    confidence: float | None
    importance: float | None


@dataclass(frozen=True, slots=True)
class PackingFactor:
    """The number of such models that a GPU cluster runs at once with 10 % added latency; Llama-2-70B is 1."""

    value: float
    source: str


@dataclass(frozen=True)
class RunMetadata:
    """Metadata of a run. `timing` names the source of each side's latency coefficients."""

    policy: str
    lossless: bool
    quality_metric: str | None
    notes: tuple[str, ...] = ()
    timing: Mapping[str, str] = field(default_factory=dict)
    packing_factor: PackingFactor | None = None
    overhead: Mapping[str, float] = field(default_factory=dict)
    """The time of decisions on a wall clock; empty if not measured."""
    estimator: Mapping[str, float] = field(default_factory=dict)
    """The errors of the scheduler's estimates of batch times; empty if not measured."""
    tiers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Use and memory of each tier's nodes; empty without tiers."""
    partition: Mapping[str, float] = field(default_factory=dict)
    """The latency of a division over tiers by the paper's equations; empty without one."""
    cloud_nodes: int = 0
    """Nodes of the cloud; 0 for a policy that does not use them."""
    prices: Mapping[str, str] = field(default_factory=dict)
    """The price of each chip of the cloud, with source and date."""
    radios: tuple[str, ...] = ()
    """What the radio of each kind of link draws, with its source; `unknown` for one without figures."""
    heat: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Seconds of a decoded token on each chip, cold and after minutes of load; empty if no chip was timed."""
    seed: int | None = None
    hypothetical: str = ""
    """Why acceptance and time are of unlike pairs of models; empty if they are of one."""
    replayed_chips: tuple[str, ...] = ()
    """The chips of the clock that a run on the wall clock replays (`runtime.pace=hardware`); else empty."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """All of meta.json."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the meaning of all figures of the run."""
        return tuple(filter(None, (self.transport_check, self.hypothetical)))

    @property
    def transport_check(self) -> str:
        """What latencies of a paced run are worth; empty for any other run."""
        if not self.replayed_chips:
            return ""
        return (
            f"transport check: the run replays the clock of {' and '.join(self.replayed_chips)}; its latencies say "
            "nothing about real chips"
        )


@dataclass(frozen=True)
class Records:
    """A whole `serve` artifact.

    Time lines and chunks are read from `artifact` when they are first asked for, and raise RecordsError if their rows
    are damaged.
    """

    requests: tuple[RequestRecord, ...]
    meta: RunMetadata
    artifact: Path

    @classmethod
    def read(cls, artifact: Path) -> "Records":
        """Raises RecordsError if a file is missing, unreadable, without requests, or lacks a column."""
        requests = tuple(read_requests(artifact))
        if not requests:
            raise RecordsError(f"{artifact} holds no request: nothing was served, so there is nothing to report.")
        for name, kind in (("timeline", TimelineSpan), ("chunks", ChunkRecord)):
            _open_parquet(artifact / f"{name}.parquet", kind)
        return cls(requests, read_metadata(artifact), artifact)

    @cached_property
    def timeline(self) -> tuple[TimelineSpan, ...]:
        return tuple(_rows(self._timeline_table, TimelineSpan))

    @cached_property
    def _timeline_table(self) -> "pa.Table":
        return _read_table(self.artifact / "timeline.parquet", TimelineSpan)

    @property
    def has_time_lines(self) -> bool:
        """False if the run kept none (`runtime.detail=false`)."""
        return bool(self._timeline_table.num_rows)

    def timeline_of(self, request: str) -> list[TimelineSpan]:
        """The time line of one request, in the order of its recording. Other requests' rows become no objects."""
        import pyarrow.compute as pc

        return _rows(self._timeline_table.filter(pc.equal(self._timeline_table["request"], request)), TimelineSpan)

    def requests_on(self, *lanes: str) -> set[str]:
        """The requests with a span on one of these lanes."""
        return set(self._spans_on(lanes)["request"].unique().to_pylist())

    def spans_on(self, lane: str) -> list[tuple[float, float]]:
        """(start_s, end_s) of all requests' spans on a lane."""
        found = self._spans_on([lane])
        return list(zip(found["start_s"].to_pylist(), found["end_s"].to_pylist(), strict=True))

    def _spans_on(self, lanes: Sequence[str]) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._timeline_table
        return table.filter(pc.is_in(table["lane"], value_set=pa.array(lanes)))

    @cached_property
    def chunks(self) -> tuple[ChunkRecord, ...]:
        return tuple(_read_parquet(self.artifact / "chunks.parquet", ChunkRecord))


def read_batches(artifact: Path) -> tuple[list[float], list[int]]:
    """When each batch began, and its number of requests; none without the file. Raises RecordsError for a bad one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = artifact / "batches.parquet"
    if not path.is_file():
        return [], []
    try:
        columns = pq.read_table(path, columns=["begin_s", "requests"]).to_pydict()
        return columns["begin_s"], columns["requests"]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise _unreadable(path, str(error)) from error


def read_requests(artifact: Path) -> list[RequestRecord]:
    """The requests alone. Raises RecordsError as `Records.read` does."""
    return _read_parquet(artifact / "requests.parquet", RequestRecord)


def _read_parquet(path: Path, kind: type[RecordT]) -> list[RecordT]:
    return _rows(_read_table(path, kind), kind)


def _read_table(path: Path, kind: type[Any]) -> "pa.Table":
    import pyarrow as pa

    try:
        return _open_parquet(path, kind).read(columns=_columns(kind))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, str(error)) from error


def _rows(table: "pa.Table", kind: type[RecordT]) -> list[RecordT]:
    names = _columns(kind)
    columns = [_values(table[name].combine_chunks()) for name in names]
    return [kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _open_parquet(path: Path, kind: type[Any]) -> Any:
    """Opens the file and checks that it has the columns of `kind`; reads no row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, str(error)) from error
    if lacking := sorted(set(_columns(kind)) - set(file.schema_arrow.names)):
        raise _unreadable(path, f"it lacks the columns {', '.join(lacking)}")
    return file


def _columns(kind: type[Any]) -> list[str]:
    return [one.name for one in fields(kind) if one.metadata.get("recorded", True)]


def _values(column: Any) -> list[Any]:
    """As `column.to_pylist()`, in a fraction of the time for numbers and for strings that repeat."""
    import pyarrow as pa

    if column.null_count or pa.types.is_nested(column.type):
        found: list[Any] = column.to_pylist()
    elif pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        found = [texts[i] for i in encoded.indices.to_numpy().tolist()]
    else:
        found = column.to_numpy(zero_copy_only=False).tolist()
    return found


def read_metadata(artifact: Path) -> RunMetadata:
    """The metadata alone. Raises RecordsError as `Records.read` does."""
    path = artifact / "meta.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        chosen = {one.name: found[one.name] for one in fields(RunMetadata) if one.name in found and one.name != "raw"}
        lacking = [one.name for one in fields(RunMetadata) if _is_needed(one) and one.name not in chosen]
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if lacking:
        raise _unreadable(path, f"it lacks {', '.join(lacking)}")
    factor = chosen.get("packing_factor")
    chosen["packing_factor"] = PackingFactor(factor["value"], factor["source"]) if factor else None
    return RunMetadata(**chosen | _tuples(chosen) | {"raw": found})


def _tuples(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of meta.json as the tuples that they are."""
    return {name: tuple(chosen.get(name, ())) for name in ("notes", "radios", "replayed_chips")}


def _is_needed(one: Any) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _unreadable(path: Path, problem: str) -> RecordsError:
    reason, stage = " ".join(problem.split()).rstrip("."), path.parent.parent.name  # the store's STAGE/DIGEST/FILE
    return RecordsError(
        f"{path} cannot be read as the record of a served workload: {reason}. If it was damaged, give the same command "
        f"with force=[{stage}] once: that builds this stage again."
    )
