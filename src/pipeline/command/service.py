"""`python -m serving.cloud ...` and `python -m serving.device ...`: a process that serves until it is stopped.

The configuration describes it as a stage, with the same artifacts as inputs; it leaves none itself.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.closed_pipe import ends_at_closed_pipe
from pipeline.config.arguments import (
    choices_available,
    choices_given,
    conf_dir,
    find_misspelling,
    find_unwritable_outputs,
    normalise,
)
from pipeline.config.hydra_errors import as_config_errors
from pipeline.errors import INTERRUPTED, ConfigError, UserError, print_error

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.artifacts.stage import Stage
    from pipeline.running import Job

_HELP_FLAGS = frozenset({"--help", "-h"})
_CONFIG_DIR_FLAGS = ("--config-dir", "-cd")


def main(name: str, description: str | None, default_choices: Sequence[str] = ()) -> None:
    """Runs the service `name` of the composed configuration; `default_choices` hold for groups that the command line
    does not choose.
    """
    if _HELP_FLAGS & set(sys.argv[1:]):
        with ends_at_closed_pipe():
            print(usage(name, description or ""))
        return
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(name, sys.argv[1:], default_choices)
    except UserError as problem:
        with ends_at_closed_pipe():
            sys.exit(print_error(problem))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def run(name: str, argv: Sequence[str], default_choices: Sequence[str] = ()) -> None:
    """Builds the artifacts of the service and calls its function. Raises UserError for mistakes of a user."""
    from pipeline.config.build import load
    from pipeline.config.plan import build_arguments

    with ends_at_closed_pipe():
        job, service = _build_inputs(name, argv, default_choices)
    target = load(service.target, name)
    try:
        target(**build_arguments(service, lambda needed: job.store.path(service.inputs[needed])))
    except ValueError as problem:
        raise ConfigError(f"{name}: {problem}") from problem


def _build_inputs(name: str, argv: Sequence[str], default_choices: Sequence[str]) -> "tuple[Job, Stage]":
    """The job and the service's stage, all of the artifacts that it reads built."""
    from pipeline import api
    from pipeline.config import policy_variants
    from pipeline.running import create_job

    words = normalise([*argv, *(word for word in default_choices if not choices_given(argv, word.partition("=")[0]))])
    if mistake := find_misspelling(words) or find_unwritable_outputs(words):
        raise ConfigError(mistake)
    overrides, folder = _split_flags(words)
    with as_config_errors():
        alone = _without_page_policies(overrides, folder)
        with api.composed(*overrides, config_dir=folder) as cfg:
            policy_variants.check(cfg, alone or cfg)
            job = create_job(cfg)
            service = job.plan(name).stages[name]
    job.run([*service.read_inputs.values()])
    return job, service


def _without_page_policies(overrides: Sequence[str], folder: Path | None) -> "DictConfig | None":
    """The configuration without the page's policies; None if the words name none."""
    from pipeline import api
    from pipeline.config import policy_variants

    words = policy_variants.without_page_policies(overrides)
    if words == overrides:
        return None
    with api.composed(*words, config_dir=folder) as found:
        return found


def usage(name: str, description: str) -> str:
    """The text of `--help`: the service, its policies and its options."""
    policies = "\n".join(f"  {policy:<14}  {what}" for policy, what in choices_available((), "policy").items())
    return (
        f"usage: python -m serving.{name} +policy=NAME [GROUP=CHOICE ...] [OPTION=VALUE ...] [--config-dir DIR]\n\n"
        f"{description.strip()}\n\npolicies:\n{policies}\n\n"
        "options of its own, such as service.device=1 (all others are those of `python -m pipeline`):\n"
        f"{_config_section('service')}"
    )


def _config_section(name: str) -> str:
    """The lines of one section of the configuration, comments included."""
    lines = (conf_dir() / "config.yaml").read_text(encoding="utf-8").splitlines()
    at = lines.index(f"{name}:")
    end = next((i for i in range(at + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    return "\n".join(line for line in lines[at:end] if line.strip() and "_target_" not in line)


def _split_flags(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The overrides and the folder of `--config-dir`. Raises ConfigError for another flag."""
    overrides: list[str] = []
    folder, left = None, iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        if option in _CONFIG_DIR_FLAGS:
            folder = Path(value if equals else next(left, ""))
        elif word.startswith("-"):
            raise ConfigError(f"{option} is not an option here: a service takes overrides, --config-dir DIR and --help")
        else:
            overrides.append(word)
    if folder and not folder.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {folder}")
    return overrides, folder
