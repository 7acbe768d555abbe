"""The data set that a job served."""

from collections.abc import Mapping
from typing import Any

from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import REFERENCE


def served_dataset(record: Manifest | None) -> dict[str, Any]:
    """The data set of a served workload and its path, with the digest of each stage that made them; empty without one.
    Ids of prompts are unique within it: each corpus of the embedded pair has a prompt test-0.
    """
    workload = record.args.get("setup", {}).get("workload", {}) if record else {}
    if record is None or not workload.get("dataset"):
        return {}
    return {key: _with_digests(workload.get(key), record.inputs) for key in ("dataset", "path")}


def _with_digests(node: Any, inputs: Mapping[str, str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: inputs.get(value, value) if key == REFERENCE else _with_digests(value, inputs)
            for key, value in node.items()
        }
    return [_with_digests(one, inputs) for one in node] if isinstance(node, list) else node
