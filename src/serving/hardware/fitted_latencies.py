"""Latency coefficients that were fitted on measurements: of a chip's file in conf/, or of a profile."""

import json
from dataclasses import dataclass
from pathlib import Path

from serving.hardware.latency import LinearLatency

PROFILE_FILE = "latency.json"


@dataclass(frozen=True)
class FittedLatencies:
    """Coefficients fitted on measurements, by architecture name."""

    source: str
    latencies: dict[str, LinearLatency]


def load_fitted_latencies(path: Path) -> FittedLatencies:
    """Reads a profile artifact: `{"source": ..., "latencies": {name: {...}}}` in the file `latency.json` or its folder.

    Raises ValueError that names the file if it is missing or malformed.
    """
    file = path / PROFILE_FILE if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return FittedLatencies(
            str(data["source"]), {name: LinearLatency(**fields) for name, fields in data["latencies"].items()}
        )
    except FileNotFoundError:
        raise ValueError(f"there is no profile at {file}. Run the profile stage first (stage=profile).") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"profile {file} cannot be read ({error}). Delete it and profile again.") from None
