"""A trace on disk: `trace.json` says what it is, `trace.safetensors` holds the tables, `tokenizer/` makes it text."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from serving.core.scores import LOGIT_SCORES
from serving.messages import EarlyExitRule
from serving.outcomes.trace import NUM_TOP_CANDIDATES, OutcomeTrace, RecordedSession, TraceTables, triangle_size
from serving.workload.prompt import Prompt

HEADER_FILE, TENSORS_FILE, TOKENIZER_DIR = "trace.json", "trace.safetensors", "tokenizer"
_HEADER_FIELDS = (
    "policy_name",
    "seed",
    "device_layers",
    "cloud_layers",
    "stop_tokens",
    "made_from",
    "exit_rule",
    "medusa_tree",
    "router_digest",
)


def save(out: Path, trace: OutcomeTrace) -> None:
    """Writes the trace into a folder."""
    from safetensors.numpy import save_file

    sessions = [asdict(session) for session in trace.sessions]
    paths = [session.pop("token_ids") for session in sessions]
    for session, path in zip(sessions, paths, strict=True):
        session["num_tokens"] = len(path)
        del session["first_row"]
    about = {name: getattr(trace, name) for name in _HEADER_FIELDS} | {"sessions": sessions}
    about["exit_rule"] = asdict(trace.exit_rule) if trace.exit_rule else None
    save_file(_arrays(paths, trace.tables), out / TENSORS_FILE)
    (out / HEADER_FILE).write_text(json.dumps(about, indent=1), encoding="utf-8")


def load(path: Path) -> OutcomeTrace:
    """Reads what `save` wrote; raises ValueError that names the folder when it is missing, cut off or inconsistent."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        about = json.loads((path / HEADER_FILE).read_text(encoding="utf-8"))
        arrays = load_file(path / TENSORS_FILE)
        text = arrays.pop("token_ids").tolist()
        about["exit_rule"] = EarlyExitRule(**about["exit_rule"]) if about["exit_rule"] else None
        about["medusa_tree"] = tuple(tuple(ranks) for ranks in about["medusa_tree"])
        about["stop_tokens"] = tuple(about["stop_tokens"])
        trace = OutcomeTrace(_sessions(about.pop("sessions"), text), TraceTables(**arrays), **about)
        _check(trace, len(text))
    except OSError:
        raise ValueError(
            f"there is no trace in {path}; runtime.outcomes.path names a folder that stage=record_outcomes made"
        ) from None
    except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as problem:
        raise ValueError(f"trace {path} cannot be read ({problem!r}); record it again") from None
    return trace


def join_traces(parts: Sequence[OutcomeTrace]) -> OutcomeTrace:
    """One trace of the sessions of several."""
    begins = accumulate((len(part.tables.targets) for part in parts), initial=0)
    sessions = [
        replace(s, first_row=s.first_row + begin)
        for part, begin in zip(parts, begins, strict=False)
        for s in part.sessions
    ]
    about = {name: getattr(parts[0], name) for name in _HEADER_FIELDS}
    return OutcomeTrace(tuple(sessions), stack_tables([part.tables for part in parts]), **about)


def stack_tables(tables: Sequence[TraceTables]) -> TraceTables:
    """One table with the rows of several."""
    import numpy as np

    columns = {
        field.name: np.concatenate([getattr(one, field.name) for one in tables], 1 if field.name == "scores" else 0)
        for field in fields(TraceTables)
    }
    return TraceTables(**columns)


def _arrays(paths: Sequence[tuple[int, ...]], tables: TraceTables) -> dict[str, Any]:
    import numpy as np

    text = np.array([token for path in paths for token in path], np.int32)
    return {"token_ids": text} | {
        field.name: np.ascontiguousarray(getattr(tables, field.name)) for field in fields(TraceTables)
    }


def _sessions(listed: Sequence[dict[str, Any]], text: list[int]) -> tuple[RecordedSession, ...]:
    found, at, first = [], 0, 0
    for fields_ in listed:
        tokens = fields_["num_tokens"]
        path = tuple(text[at : at + tokens])
        asides = tuple((base, length, token) for base, length, token in fields_["lookahead_branches"])
        session = RecordedSession(
            fields_["name"],
            _prompt(fields_["prompt"]),
            path,
            fields_["prompt_tokens"],
            fields_["max_new_tokens"],
            first,
            asides,
        )
        found.append(session)
        at, first = at + tokens, first + session.num_rows
    return tuple(found)


def _prompt(fields_: dict[str, Any]) -> Prompt:
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields_.items()}
    return Prompt(**plain)


def _check(trace: OutcomeTrace, text: int) -> None:
    """Raises ValueError where the tables contradict what the header says."""
    tables, rows = trace.tables, sum(session.num_rows for session in trace.sessions)
    shapes = {
        "targets": (rows,), "continuation_lens": (rows,), "drafts": (rows, tables.max_draft_len), "top_candidates": (rows, tables.max_draft_len, NUM_TOP_CANDIDATES),
        "scores": (len(LOGIT_SCORES), rows, tables.max_draft_len), "exit_layers": (rows, tables.max_draft_len),
        "attention": (rows, triangle_size(tables.max_draft_len)), "proposals": (rows, len(trace.medusa_tree)),
        "router_scores": (rows, tables.max_draft_len if trace.router_digest else 0),
    }  # fmt: skip
    if not trace.sessions or sum(len(session.token_ids) for session in trace.sessions) != text:
        raise ValueError(f"{len(trace.sessions)} sessions do not add up to the {text} tokens of text")
    for name, shape in shapes.items():
        if getattr(tables, name).shape != shape:
            raise ValueError(f"{name} has the shape {getattr(tables, name).shape}, and the header says {shape}")
    if not all(0 < session.prompt_tokens <= len(session.token_ids) for session in trace.sessions):
        raise ValueError("a session has no prompt, or one longer than its text")
    if tables.exit_layers.max() > trace.device_layers:
        raise ValueError(f"a draft was read off after {tables.exit_layers.max()} of {trace.device_layers} layers")
    if tables.continuation_lens.min() < 1 or tables.continuation_lens.max() > tables.max_draft_len:
        raise ValueError(f"a continuation is empty or longer than {tables.max_draft_len} tokens")
