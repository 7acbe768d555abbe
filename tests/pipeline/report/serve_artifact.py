"""Writes `serve` artifacts for tests of the report: row by row, or drawn at random as a policy might leave them."""

import json
import random
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_INTS = [
    "prompt_tokens",
    "drafted",
    "drafts_verified",
    "drafts_accepted",
    "drafts_replaced",
    "drafts_unused",
    "early_exit_tokens",
    "lookahead_attempts",
    "lookahead_position_hits",
    "lookahead_hits",
    "chunks",
    "chunks_offloaded",
    "chunks_verified",
    "uplink_nbytes",
    "downlink_nbytes",
    "uplink_messages",
    "cloud_forward_tokens",
    "discarded_tokens",
]
_FLOATS = [
    "slo_tokens_per_s",
    "slo_ttft_s",
    "arrived_s",
    "started_s",
    "ended_s",
    "ttft_s",
    "layer_share_sum",
    "link_stall_s",
    "cloud_stall_s",
    "cloud_residence_s",
    "device_busy_s",
    "cloud_busy_s",
    "cloud_queue_s",
    "draft_s",
    "device_energy_j",
    "radio_energy_j",
    "cloud_energy_j",
    "cloud_chip_s",
    "cloud_usd",
    "quality",
    "rouge_1",
]
_TEXTS = ["request", "prompt_id", "task", "device", "chip", "mode", "slo", "ending", "text"]
_LISTS = {"tokens": pa.int32(), "origins": pa.string(), "token_times_s": pa.float64(), "tbt_s": pa.float64()}

REQUESTS = pa.schema(
    [(name, pa.string()) for name in _TEXTS]
    + [(name, pa.int64()) for name in _INTS]
    + [(name, pa.float64()) for name in _FLOATS]
    + [(name, pa.list_(kind)) for name, kind in _LISTS.items()]
    + [("finished", pa.bool_())]
)
TIMELINE = pa.schema(
    {"request": pa.string(), "lane": pa.string(), "start_s": pa.float64(), "end_s": pa.float64(), "amount": pa.int64()}
)
CHUNKS = pa.schema(
    {
        "request": pa.string(),
        "position": pa.int64(),
        "num_tokens": pa.int64(),
        "accepted": pa.int64(),
        "replaced": pa.bool_(),
        "confidence": pa.float64(),
        "importance": pa.float64(),
    }
)
META = {
    "policy": "synera",
    "lossless": False,
    "quality_metric": "exact match",
    "notes": ["tokens: the embedded pair; time: emulated on the named hardware"],
    "timing": {"device": "roofline, derived", "cloud": "roofline, derived"},
    "links": ["3.9 Mbit/s up, 4.8 Mbit/s down, 40 ms delay, 1.0% lost"],
    "packing_factor": {"value": 6.0, "source": "Synera, Table 3"},
    "cloud_nodes": 1,
    "prices": {"rtx_a6000": "1.2 USD an hour of a chip (unverified: a test; 2026-11-22)"},
    "horizon_s": 10.0,
    "seed": 0,
}


def request(name: str, origins: Iterable[str], seen_s: list[float], **changes: Any) -> dict[str, Any]:
    """A complete request that arrived at 0; `changes` replace what follows from `origins` and `seen_s`."""
    origins = list(origins)
    row: dict[str, Any] = dict.fromkeys(_INTS, 0) | dict.fromkeys(_FLOATS) | dict.fromkeys(_TEXTS, "")
    row |= {"layer_share_sum": 0.0, "draft_s": 0.0, "link_stall_s": 0.0, "cloud_stall_s": 0.0, "cloud_residence_s": 0.0}
    row |= {
        "device_busy_s": 0.0,
        "cloud_busy_s": 0.0,
        "cloud_queue_s": 0.0,
        "cloud_chip_s": 0.0,
        "arrived_s": 0.0,
        "started_s": 0.0,
    }
    row |= {
        "request": name,
        "prompt_id": f"p-{name}",
        "task": "copy",
        "device": "device-0",
        "chip": "orin",
        "mode": "30W",
    }
    row |= {"slo": None, "ending": "complete", "finished": True, "prompt_tokens": 5, "text": "a b"}
    row |= {"tokens": list(range(len(origins))), "origins": origins, "token_times_s": seen_s, "ended_s": seen_s[-1]}
    row |= {"ttft_s": seen_s[0], "tbt_s": [late - soon for soon, late in pairwise(seen_s)]}
    return row | changes


def write(
    folder: Path,
    requests: list[dict[str, Any]],
    timeline: Iterable[Mapping[str, Any]] = (),
    chunks: Iterable[Mapping[str, Any]] = (),
    **meta: Any,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, schema in (
        ("requests", requests, REQUESTS), ("timeline", timeline, TIMELINE), ("chunks", chunks, CHUNKS)
    ):  # fmt: skip
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), folder / f"{name}.parquet")
    (folder / "meta.json").write_text(json.dumps(META | meta))
    return folder


def drawn(
    folder: Path, policy: str = "synera", share: float = 0.25, n: int = 24, right: float = 0.6, seed: int = 1
) -> Path:
    """`n` requests of which each draft of four is asked about with probability `share`; `right` are scored 1."""
    rng, rows, pieces, chunks = random.Random(seed), [], [], []
    for index in range(n):
        row, line, drafts = _drawn(rng, f"r{index}", share)
        row |= {"prompt_id": f"p{index}", "task": ("copy", "sort", "context")[index % 3]}
        row |= {"device": f"device-{index % 4}", "quality": float(index < right * n), "rouge_1": 0.5}
        rows.append(row)
        pieces += line
        chunks += drafts
    return write(folder, rows, pieces, chunks, policy=policy)


def _drawn(rng: random.Random, name: str, share: float) -> tuple[dict[str, Any], list[Any], list[Any]]:
    now, line, drafts, origins, seen_s = 0.0, [], [], [], []

    def spend(lane: str, seconds: float, amount: int) -> None:
        nonlocal now
        line.append({"request": name, "lane": lane, "start_s": now, "end_s": now + seconds, "amount": amount})
        now += seconds

    for at in range(0, 40, 4):
        spend("draft", 0.03 * rng.uniform(0.9, 1.1), 4)
        accepted = rng.choice((2, 4, 4)) if rng.random() < share else None
        drafts.append(
            {
                "request": name,
                "position": at,
                "num_tokens": 4,
                "accepted": accepted,
                "replaced": False,
                "confidence": 0.7,
                "importance": 0.1,
            }
        )
        if accepted is None:
            origins += ["device"] * 4
        else:
            spend("uplink", 0.045, 120)
            spend("queue", 0.01, 5)
            spend("verify" if at else "prefill", 0.04, 5)
            spend("downlink", 0.04, 40)
            origins += ["accepted"] * accepted + ["bonus" if accepted == 4 else "corrected"]
        seen_s += [now] * (len(origins) - len(seen_s))
    judged = [draft["accepted"] for draft in drafts if draft["accepted"] is not None]
    counts = {
        "drafted": 40,
        "drafts_verified": 4 * len(judged),
        "drafts_accepted": sum(judged),
        "drafts_unused": 4 * len(judged) - sum(judged),
    }
    counts |= {
        "chunks": len(drafts),
        "chunks_offloaded": len(judged),
        "chunks_verified": len(judged),
        "uplink_nbytes": 120 * len(judged),
    }
    busy = {"device_busy_s": 0.3, "cloud_busy_s": 0.04 * len(judged), "cloud_queue_s": 0.01 * len(judged)}
    busy |= {"draft_s": 0.25}
    energy = {"device_energy_j": 4.0, "cloud_energy_j": 9.0 * len(judged)}
    energy |= {"cloud_chip_s": 0.04 * len(judged), "cloud_usd": 1.2 * 0.04 * len(judged) / 3600}
    extra = {
        "downlink_nbytes": 40 * len(judged),
        "uplink_messages": len(judged),
        "cloud_forward_tokens": 5 * len(judged),
    }
    ahead = {"layer_share_sum": 40.0, "link_stall_s": 0.085 * len(judged), "cloud_stall_s": 0.05 * len(judged)}
    return request(name, origins, seen_s, **counts, **busy, **energy, **extra, **ahead), line, drafts
