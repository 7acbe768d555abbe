"""What is compiled: the modules of `serving` that a simulation runs for every event.

Left as they are: what a configuration describes (its classes need their annotations), protocols that `isinstance` is
asked about, and classes that inherit from built-in ones. mypyc can express none of these.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

MODULES = (
    "serving.messages",
    "serving.core.draft_tree",
    "serving.core.importance",
    "serving.core.keyed_random",
    "serving.core.kv_accounting",
    "serving.core.link_monitor",
    "serving.core.queued_request",
    "serving.core.session",
    "serving.core.stop_strings",
    "serving.core.tree_growth",
    "serving.hardware.estimator",
    "serving.hardware.latency",
    "serving.hardware.roofline",
    "serving.hardware.timed_executor",
    "serving.network.channel",
    "serving.nodes.compute_queue",
    "serving.nodes.device",
    "serving.nodes.hop_path",
    "serving.nodes.requester",
    "serving.nodes.reservations",
    "serving.nodes.round_timing",
    "serving.nodes.session_registry",
    "serving.nodes.speculator",
    "serving.nodes.worker",
    "serving.drivers.simulator",
    "serving.metrics.recorder",
    "serving.outcomes.acceptance_draws",
    "serving.outcomes.sampled_tree",
    "serving.outcomes.sampled_engine",
)

PACKAGES = ("native", "pipeline", "serving", "training")
"""Those that the compiled modules take types from, and theirs."""
SOURCES = Path(__file__).parents[1]
LIBRARY = Path(__file__).parent / "lib"
"""The built files, and a manifest that says what they were built from."""
MANIFEST = LIBRARY / "manifest.json"


def source_path(module: str, root: Path = SOURCES) -> Path:
    """The file of a module; of a package its __init__.py."""
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def source_digests(modules: Iterable[str] = MODULES, root: Path = SOURCES) -> dict[str, str]:
    """The digest of each module's source; empty for one that is not there."""
    return {module: _digest(source_path(module, root)) for module in modules}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""
