"""The texts of `python -m pipeline --help` and `python -m pipeline show`: groups with their choices, and metrics."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from textwrap import fill

from pipeline.config.arguments import choices_available, config_folders, format_choices, suggestion
from pipeline.errors import ConfigError
from serving.metrics import definitions

GROUPS: Mapping[str, str] = {
    "policy": "how device and cloud share the work",
    "model": "the device's and the cloud's language models",
    "hardware": "the chips they run on, for time and energy",
    "network": "the link between them",
    "workload": "prompts, arrivals and token limits",
    "slo": "promised token speeds (write +slo=NAME)",
    "draws": "a sweep's claims under the clock's errors (write +draws=clock)",
    "runtime": "real or simulated execution",
    "trainer": "where models are trained",
    "page": "policies beside the first one in the demo (python -m serving.page)",
    "experiment": "a table or figure of a paper, with its own choices",
}
"""The groups at the top of conf/, in the order of the help, and what each one chooses."""

_WIDTH = 110
_USAGE = """\
usage: python -m pipeline +policy=NAME [GROUP=CHOICE ...] [OPTION=VALUE ...] [--config-dir DIR]
       python -m pipeline +experiment=NAME [...]
       python -m pipeline -m +policy=NAME,NAME [...]      a job for each combination of values
       python -m pipeline show GROUP                      each choice of a group in one line; try policy/draft
       python -m pipeline show metrics [WORD]             every metric: key, unit, meaning, formula
       python -m pipeline cache list|why|check|clean      the artifacts in outputs/artifacts
       python -m pipeline results list|keep|draws|write   results of experiments, and the tables of docs
       python -m pipeline sweep status|resume FOLDER      the jobs of a sweep, and those that are missing
       python -m pipeline report FOLDER [export=latex,csv,figures]   a sweep or run as a page, or for print
       python -m pipeline trace export|show|import FILE   a recorded trace as a file, to simulate elsewhere
       python -m pipeline speeds FILE [WORD=VALUE ...]    a benchmark of your machine against the clock
       python -m pipeline ui                              MLflow in the browser, with the pages to open
       python -m pipeline doctor                          what is installed here, and what needs what is not

Builds what a policy needs, serves a workload with it, and reports latency, quality, energy and cost.
"""
_OPTIONS = """\
  stage=plan          print the stages that would run, and why; also train, profile or a stage's name
  outputs=DIR         where artifacts, runs and the MLflow store go (outputs)
  export=latex,csv    write the results for print when the run has ended; also figures and html
  force=[NAME]        build these stages again
  --cfg job           print the composed configuration; every key of it is an option
  --hydra-help        flags of Hydra"""


def overview(argv: Sequence[str]) -> str:
    """The help text: usage, every top group with its choices, and the main options."""
    width = max(map(len, GROUPS))
    lines = [
        fill(
            f"{group:<{width}}  {meaning}: {', '.join(_names(argv, group))}", _WIDTH, initial_indent="  ",
            subsequent_indent=" " * (width + 4), break_on_hyphens=False, break_long_words=False,
        )
        for group, meaning in GROUPS.items()
    ]  # fmt: skip
    return "\n".join([_USAGE, "groups and their choices:", *lines, "", "options:", _OPTIONS])


def command_usage(name: str) -> str:
    """What follows the name of a command such as `results`, in the words of its own module where that has a usage."""
    if name in ("report", "results", "speeds", "sweep", "trace"):
        usage: str = import_module(f"pipeline.command.{name}").USAGE
        return usage
    return "\n".join(line[7:] for line in _USAGE.splitlines() if f" pipeline {name} " in line)


def _names(argv: Sequence[str], group: str) -> list[str]:
    """The choices of a group; those in subfolders are counted."""
    folders: dict[str, int] = {}
    for name in choices_available(argv, group):
        folder, slash, _ = name.partition("/")
        folders[folder + slash] = folders.get(folder + slash, 0) + 1
    return [f"{name}... ({count})" if name.endswith("/") else name for name, count in folders.items()]


def show_group(argv: Sequence[str]) -> str:
    """The choices of the group that `argv` names first, one line each, and the groups below it; or all metrics.

    Raises ConfigError where `argv` names no group, or one that does not exist.
    """
    if argv[:1] == ["metrics"]:
        return _metrics_text(argv[1:])
    known = all_groups(argv)
    group = argv[0].strip("/") if argv else ""
    if group not in known:
        problem = f"there is no group {group!r}.{suggestion(group, known)}" if group else "which group?"
        tops = ", ".join(name for name in known if "/" not in name)
        raise ConfigError(f"{problem} At the top there are {tops}; show of one of them names the groups below it.")
    below = [name for name in known if name.startswith(f"{group}/") and name.count("/") == group.count("/") + 1]
    choices = choices_available(argv, group)
    lines = [format_choices(choices)] if choices else []
    if below and group != "experiment":
        lines.append(f"groups below: {', '.join(below)}")
    return "\n".join(lines)


def _metrics_text(words: Sequence[str]) -> str:
    """For each metric with these words in its key or meaning: key, unit and better side; meaning and formula."""
    lines = []
    for metric in definitions.METRICS:
        if not all(word.lower() in f"{metric.key} {metric.meaning}".lower() for word in words):
            continue
        key = metric.key if len(metric.keys) == 1 else f"{metric.key}/{{{','.join(definitions.STATISTICS)}}}"
        better = f"{metric.better} is better" if metric.better else ""
        facts = ", ".join(filter(None, (metric.unit, better)))
        lines.append(f"{key}  ({facts})" if facts else key)
        text = f"{metric.meaning} Formula: {metric.formula}"
        lines.append(fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
    if not lines:
        raise ConfigError(f"no metric has {' and '.join(words)} in its key or meaning; `show metrics` lists all.")
    return "\n".join(lines)


def all_groups(argv: Sequence[str]) -> list[str]:
    """Every folder of the configuration that holds files, or folders with files, in order."""
    found = set()
    for folder in config_folders(argv):
        for file in folder.rglob("*.yaml"):
            parents = [path.relative_to(folder).as_posix() for path in file.parents if path.is_relative_to(folder)]
            found |= {name for name in parents if name != "." and name.partition("/")[0] != "hydra"}
    return sorted(found)
