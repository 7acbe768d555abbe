"""Writes the results of a run: requests, time lines, draft chunks and batches as Parquet tables, and meta.json."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from serving.core.importance import importance_scores
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.engines.checkpoint_architecture import max_positions
from serving.engines.models import ModelConfig
from serving.engines.tokenizer import Tokenizer
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet, total_or_unknown
from serving.hardware.latency import batch_load
from serving.hardware.replica_packing import ReplicaPacking, reported_factor
from serving.learned.thresholds import Thresholds
from serving.messages import INF, DraftDecision
from serving.metrics import batch_timing
from serving.metrics.batch_timing import BatchTiming
from serving.metrics.radio_energy import have_time_lines, radio_energies_j
from serving.metrics.recorder import INTERVAL_FIELDS, LANES, SessionRecord
from serving.metrics.utilisation import UtilisationObserver, idle_times, stall_times
from serving.policy.by_condition import PlacedPolicy
from serving.policy.slots.placement import TieredPlacement
from serving.runtimes.runtime import RunResult, Runtime
from serving.workload.dataset import quality_note
from serving.workload.metrics import Rouge1, checked_score

ResultRow = dict[str, Any]


def write_results(
    out: Path,
    setup: Setup,
    runtime: Runtime,
    served: RunResult,
    packing: ReplicaPacking | None = None,
    batches: Sequence[BatchTiming] = (),
    utilisation: UtilisationObserver | None = None,
) -> None:
    """Writes the artifact folder of a `serve` stage."""
    queries, records, tokenizer = served.queries, served.records, served.tokenizer
    topology = Topology(setup, served.target_layers)
    fleets = tuple(topology.device_fleets.values())
    modes = {
        session: mode
        for name, own in topology.queries_by_device(queries).items()
        for session, mode in topology.power_modes(name, own).items()
    }
    by_device = _by_device(topology, served)
    radio_j = _radio_energies_j(topology, served, by_device)
    idle_s = {session: own_s for own in by_device.values() for session, own_s in idle_times(own).items()}
    rows = []
    for query in queries:
        record = records[query.request.session]
        fleet, mode = fleets[query.device], modes[record.session]
        row = _request_row(setup, query, record, fleet, mode, idle_s[record.session], tokenizer)
        row |= {"radio_energy_j": radio_j[record.session]}
        row |= _cloud_spending([(topology.cloud_fleets[node], busy_s) for node, busy_s in record.node_busy_s.items()])
        rows.append(row | (_UNKNOWN_ENERGY if served.local_timing else {}) | ({} if served.is_text else _NO_QUALITY))
    _write_parquet(out / "requests.parquet", rows)
    _write_time_lines(out / "timeline.parquet", [records[query.request.session] for query in queries])
    _write_parquet(
        out / "chunks.parquet", [_decision_row(c) for q in queries for c in records[q.request.session].draft_decisions]
    )
    expected = batch_timing.batch_rows(batches, topology.estimator) if batches else []
    if expected:
        _write_parquet(out / "batches.parquet", expected)
    meta = _meta(setup, runtime, served, fleets, rows, packing) | {
        "estimator": batch_timing.estimator_errors(expected),
        "tiers": utilisation.by_tier(topology, records.values()) if utilisation else {},
        "partition": _partition(setup),
        "cloud_nodes": len(topology.cloud_fleets) * setup.chip_sets_per_cloud_node if setup.uses_target else 0,
        "prices": {} if served.local_timing else _prices(topology.cloud_fleets.values() if setup.uses_target else ()),
    }
    (out / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


_RECORD_COLUMNS = (
    "device", "ending", "prompt_tokens", "tokens", "arrived_s", "drafted", "drafts_verified", "drafts_accepted",
    "drafts_replaced", "discarded_tokens", "draft_s", "early_exit_tokens", "layer_share_sum", "lookahead_attempts",
    "lookahead_position_hits", "lookahead_hits", "uplink_nbytes", "downlink_nbytes", "uplink_messages", "device_busy_s",
    "cloud_busy_s", "cloud_forward_tokens", "cloud_queue_s",
)  # fmt: skip
"""Columns of requests.parquet that are fields of `SessionRecord`."""


def _partition(setup: Setup) -> dict[str, float]:
    """The printed latency of a placement that divides the whole model over tiers; empty for others."""
    placement = setup.policy.placement
    return placement.partition.printed_latency if isinstance(placement, TieredPlacement) else {}


def _request_row(
    setup: Setup, query: Query, record: SessionRecord, fleet: Fleet, mode: str, idle_s: float, tokenizer: Tokenizer
) -> ResultRow:
    """`idle_s`: for which the device's chip waits and the request pays."""
    prompt, seen = query.prompt, record.token_times_s
    text = tokenizer.decode(record.tokens)
    answer, metrics = prompt.extract_answer(text), setup.workload.dataset.metrics
    ended_s = record.arrived_s if record.ended_s is None else record.ended_s
    started_s = record.arrived_s if record.started_s is None else record.started_s
    stalled = (
        stall_times(record.timeline, INF if record.ended_s is None else record.ended_s) if record.timeline else None
    )
    own = sum(record.origins.count(kind) for kind in ("device", "offline", "accepted", "cloud_accepted"))
    return {
        "request": record.session,
        "prompt_id": prompt.id,
        "task": prompt.task,
        "chip": fleet.chip.name,
        "mode": mode,
        "slo": query.slo.name if query.slo else None,
        "slo_tokens_per_s": query.slo.tokens_per_s if query.slo else None,
        "slo_ttft_s": query.slo.ttft_s if query.slo else None,
        "finished": record.ending == "complete",
        "text": text,
        "origins": list(record.origins),
        "started_s": started_s,
        "ended_s": ended_s,
        "token_times_s": seen,
        "ttft_s": seen[0] - record.arrived_s if seen else None,
        "tbt_s": [b - a for a, b in pairwise(seen)],
        "drafts_unused": record.drafted - own if record.drafted else 0,
        "link_stall_s": stalled.link_s if stalled else None,
        "cloud_stall_s": stalled.cloud_s if stalled else None,
        "cloud_residence_s": stalled.cloud_residence_s if stalled else None,
        "chunks": record.num_decisions,
        "chunks_offloaded": record.num_offloaded,
        "chunks_verified": record.num_verified,
        "device_energy_j": fleet.joules(record.device_busy_s, idle_s, mode),
        "quality": checked_score(metrics[0], answer, prompt) if metrics else None,
        "rouge_1": Rouge1().score(answer, prompt) if any(prompt.references) else None,
        **{name: getattr(record, name) for name in _RECORD_COLUMNS},
    }


def _radio_energies_j(
    topology: Topology, served: RunResult, by_device: Mapping[str, Sequence[SessionRecord]]
) -> dict[str, float | None]:
    """The energy of each session's messages on its device's radio; unknown where links or chips took other times."""
    known = served.links_timed and not served.local_timing
    with_time_lines = have_time_lines(served.records.values())
    found: dict[str, float | None] = {}
    for device, records in by_device.items():
        link = topology.device_link(device)
        found |= radio_energies_j(records, link if known else replace(link, radio=None), with_time_lines)
    return found


def _by_device(topology: Topology, served: RunResult) -> dict[str, list[SessionRecord]]:
    found: dict[str, list[SessionRecord]] = {name: [] for name in topology.devices}
    for record in served.records.values():
        found[record.device].append(record)
    return found


def _cloud_spending(busy: Sequence[tuple[Fleet, float]]) -> ResultRow:
    """Energy, chip time and price of a request in the cloud, whose nodes were busy for so many seconds."""
    return {
        "cloud_energy_j": total_or_unknown([fleet.joules(busy_s) for fleet, busy_s in busy]),
        "cloud_usd": total_or_unknown([fleet.usd(busy_s) for fleet, busy_s in busy]),
        "cloud_chip_s": sum([fleet.tensor_parallel * busy_s for fleet, busy_s in busy], 0.0),
    }


def _decision_row(decision: DraftDecision) -> ResultRow:
    means = {name: sum(values) / len(values) for name, values in decision.scores.items() if values}
    return {
        "request": decision.session,
        "position": decision.position,
        "num_tokens": len(decision.tokens),
        "accepted": decision.accepted,
        "replaced": decision.replaced,
        "confidence": means.get("confidence"),
        "importance": next((means[name] for name in importance_scores(tuple(means))), None),
    }


def _meta(
    setup: Setup,
    runtime: Runtime,
    served: RunResult,
    fleets: Sequence[Fleet],
    rows: Sequence[ResultRow],
    packing: ReplicaPacking | None,
) -> dict[str, Any]:
    metrics = setup.workload.dataset.metrics
    timed = setup.pair.cloud.timed_architecture
    factor = packing.factor(timed) if packing else reported_factor(timed)
    links = [fleet.network or setup.access_link for fleet in fleets] if setup.uses_target else []
    return {
        "policy": setup.policy.name,
        "policy_case": setup.policy.case if isinstance(setup.policy, PlacedPolicy) else "",
        "runtime": type(runtime).__name__.lower(),
        "runtime_described": runtime.described,
        "lossless": setup.policy.lossless,
        "quality_metric": metrics[0].name if metrics and served.is_text else None,
        "models": _models(setup) if served.is_text else {},
        "hypothetical": setup.pair.hypothetical if setup.uses_target and setup.policy.draft.source == "model" else "",
        "notes": [*_notes(setup, served.queries), *served.notes],
        "timing": _local_timing(setup) if served.local_timing else _timing(setup, fleets),
        "replayed_chips": _computing_chips(setup, fleets) if served.paced else [],
        "links": list(dict.fromkeys(link.described for link in links)),
        "radios": list(dict.fromkeys(link.radio.described if link.radio else "unknown" for link in links)),
        "heat": {} if served.local_timing else _heat(setup, fleets),
        "packing_factor": asdict(factor) if factor else None,
        "overhead": dict(served.overhead),
        "horizon_s": max((row["ended_s"] for row in rows), default=0.0),
        "seed": setup.seed,
    }


def _models(setup: Setup) -> dict[str, dict[str, str]]:
    """The model of each side that the policy uses, and what it is timed as."""
    return {
        side: {
            "wrote": model.described,
            "timed_as": "itself" if model.is_timed_as_itself else model.timed_architecture.name,
        }
        for side, model in _used_models(setup).items()
        if model.is_there
    }


def _used_models(setup: Setup) -> dict[str, ModelConfig]:
    sides = {"device": setup.policy.draft.source == "model", "cloud": setup.uses_target}
    return {side: getattr(setup.pair, side) for side, used in sides.items() if used}


def _cut_note(setup: Setup, queries: Sequence[Query]) -> str:
    """How many prompts lost how much to the workload's limit; empty if none did."""
    lost, limit = sorted(query.num_cut for query in queries if query.num_cut), setup.workload.max_prompt_tokens
    if not lost:
        return ""
    tokens = f"{lost[0]} to {lost[-1]} tokens" if lost[0] < lost[-1] else f"{lost[0]} token{'s' if lost[0] > 1 else ''}"
    return (
        f"{len(lost)} of {len(queries)} prompts are longer than workload.max_prompt_tokens={limit}, and lost {tokens}"
    )


def _positions_note(side: str, model: ModelConfig, queries: Sequence[Query]) -> str:
    """How many requests may grow beyond what a model was trained for; empty if none may."""
    most = max_positions(model.path) if isinstance(model.path, Path) else None
    lengths = [len(query.request.prompt) + query.request.max_new_tokens for query in queries]
    beyond = sum(length > most for length in lengths) if most else 0
    if not beyond:
        return ""
    return (
        f"{beyond} of {len(queries)} requests have up to {max(lengths)} tokens, and the {side}'s model was trained for "
        f"{most}: what it writes beyond them is of no such model"
    )


def _notes(setup: Setup, queries: Sequence[Query]) -> list[str]:
    pair, used = setup.pair, _used_models(setup)
    names = " and ".join(dict.fromkeys(model.timed_architecture.name for model in used.values()))
    assumed = (
        f"the models stand for {names} in time, bytes and memory; set "
        f"{' and '.join(f'model.{side}.timed_architecture' for side in used)} to what they are"
    )
    known = pair.embedded or all(model.is_timed_as_itself for model in used.values())
    found = [quality_note(setup.workload.dataset, pair.embedded), None if known else assumed]
    found += [
        *(model.quantization_note for model in used.values()),
        pair.cloud.server_note,
        pair.cloud.tensor_parallel_note,
        _cut_note(setup, queries),
        *(_positions_note(side, model, queries) for side, model in used.items()),
    ]
    profiled = [getattr(slot, "thresholds", None) for slot in vars(setup.policy).values()]
    found += dict.fromkeys(each.note for each in profiled if isinstance(each, Thresholds))
    if isinstance(setup.policy, PlacedPolicy):
        found.append(setup.policy.reason)
    return [note for note in found if note]


HEAT_CONTEXT_TOKENS = 512
"""Cached tokens behind which a report says what a decoded token takes, cold and hot."""


def _heat(setup: Setup, fleets: Sequence[Fleet]) -> dict[str, dict[str, Any]]:
    """A decoded token on each chip that the policy uses, cold and after minutes of load (None: not known), by chip."""
    pair = setup.pair
    found: dict[str, dict[str, Any]] = {}
    if setup.policy.drafts_on_device:
        found |= {fleet.chip.name: _decode_figures(fleet, pair.device.timed_architecture) for fleet in fleets}
    tiers = [tier for hop in setup.hops if (tier := setup.hardware.tier(hop.node))] if setup.uses_target else []
    for fleet in (fleet for tier in tiers for fleet in tier.fleets):
        found.setdefault(fleet.chip.name, _decode_figures(fleet, pair.cloud.timed_architecture))
    return found


def _decode_figures(fleet: Fleet, architecture: Architecture) -> dict[str, Any]:
    cold = replace(fleet, heat="cold").latency(architecture)
    cold_s = cold.seconds(batch_load(cold.layers, [(HEAT_CONTEXT_TOKENS, 1)], 1))
    curve = fleet.chip.sustained
    return {
        "architecture": architecture.name,
        "cached_tokens": HEAT_CONTEXT_TOKENS,
        "cold_s": cold_s,
        "sustained_s": cold_s / curve.share if curve else None,
        "curve": curve.described if curve else None,
        "run": fleet.heat,
    }


def _timing(setup: Setup, fleets: Sequence[Fleet]) -> dict[str, str]:
    """The source of the latency coefficients of each side that the policy uses."""
    found = {}
    if setup.device_models:
        sources = dict.fromkeys(fleet.latency(model).source for model in setup.device_models for fleet in fleets)
        found["device"] = "; ".join(sources)
    if setup.uses_target:
        tiers = [tier for hop in setup.hops if (tier := setup.hardware.tier(hop.node))]
        models = [model for model in (setup.pair.cloud.timed_architecture, setup.cloud_drafter) if model]
        every = [fleet.latency(model).source for model in models for tier in tiers for fleet in tier.fleets]
        found["cloud"] = "; ".join(dict.fromkeys(every))
    return found


def _computing_chips(setup: Setup, fleets: Sequence[Fleet]) -> list[str]:
    """The names of the chips that the policy uses, devices first."""
    tiers = [tier for hop in setup.hops if (tier := setup.hardware.tier(hop.node))]
    every = [*(fleets if setup.device_models else ()), *(fleet for tier in tiers for fleet in tier.fleets)]
    return list(dict.fromkeys(fleet.chip.name for fleet in every))


def _prices(fleets: Iterable[Fleet]) -> dict[str, str]:
    """The price of each chip of the cloud, with source and date."""
    return {
        fleet.chip.name: fleet.chip.price.described if fleet.chip.price else "no price is known" for fleet in fleets
    }


def _local_timing(setup: Setup) -> dict[str, str]:
    sides = (("device", setup.policy.drafts_on_device), ("cloud", setup.uses_target))
    return {side: "the wall clock of this machine, whatever chip is named" for side, used in sides if used}


_NO_QUALITY = {"text": "", "quality": None, "rouge_1": None}
_UNKNOWN_ENERGY = {"device_energy_j": None, "cloud_energy_j": None, "cloud_usd": None}
_LIST_COLUMNS = {"tokens": "int32", "origins": "string", "token_times_s": "double", "tbt_s": "double"}
_NULLABLE_COLUMNS = {
    "slo": "string", "slo_tokens_per_s": "double", "slo_ttft_s": "double", "ttft_s": "double", "quality": "double",
    "rouge_1": "double", "accepted": "int64", "confidence": "double", "importance": "double",
    "device_energy_j": "double", "radio_energy_j": "double", "cloud_energy_j": "double", "cloud_usd": "double",
    "link_stall_s": "double", "cloud_stall_s": "double", "cloud_residence_s": "double",
}  # fmt: skip
"""Columns that may be null in every row, with their types."""
_TABLE_COLUMNS = {
    "chunks.parquet": {
        "request": "string",
        "position": "int64",
        "num_tokens": "int64",
        "accepted": "int64",
        "replaced": "bool",
        "confidence": "double",
        "importance": "double",
    },
}


def _write_time_lines(file: Path, records: Sequence[SessionRecord]) -> None:
    """Column by column: a long run has millions of intervals."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = np.frombuffer(b"".join([record.timeline.packed for record in records]), np.dtype(INTERVAL_FIELDS))
    owners = np.repeat(np.arange(len(records)), [len(record.timeline) for record in records])
    sessions = pa.array([record.session for record in records], pa.string())
    columns = {"request": sessions.take(pa.array(owners)), "lane": pa.array(LANES).take(pa.array(packed["lane"]))}
    columns |= {name: pa.array(packed[name]) for name, _ in INTERVAL_FIELDS[1:]}
    pq.write_table(pa.table(columns), file)


def _write_parquet(file: Path, rows: Sequence[ResultRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(rows[0]) if rows else list(_TABLE_COLUMNS.get(file.name, {}))
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        if name in _LIST_COLUMNS:
            columns[name] = pa.array(values, pa.list_(pa.type_for_alias(_LIST_COLUMNS[name])))
        else:
            kind = _NULLABLE_COLUMNS.get(name) or _TABLE_COLUMNS.get(file.name, {}).get(name)
            columns[name] = pa.array(values, pa.type_for_alias(kind) if kind else None)
    pq.write_table(pa.table(columns), file)
