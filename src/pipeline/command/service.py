"""`python -m serving.cloud ...` and `python -m serving.device ...`: a process that serves until it is told to stop.

It is described as a stage is, from the same configuration, and needs the same artifacts; but it leaves none.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.hydra_errors import said_plainly
from pipeline.config.arguments import choices, chosen, conf_dir, misspelt, rewritten, unwritable
from pipeline.errors import ConfigError, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

BAD_INPUT = 2
INTERRUPTED = 130

_HELP = frozenset({"--help", "-h"})
_FOLDER = ("--config-dir", "-cd")


def main(name: str, about: str | None, usual: Sequence[str] = ()) -> None:
    """Runs the service `name` of the configuration that the command line composes; `usual` are choices of groups that
    it need not make.
    """
    if _HELP & set(sys.argv[1:]):
        print(usage(name, about or ""))
        return
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(name, sys.argv[1:], usual)
    except UserError as problem:
        if os.environ.get("TANDEM_DEBUG"):
            traceback.print_exc()
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def run(name: str, argv: Sequence[str], usual: Sequence[str] = ()) -> None:
    """Builds what the service needs, and calls its function; raises UserError for what a user can mend."""
    from pipeline import api
    from pipeline.config import policy_variants
    from pipeline.config.build import load
    from pipeline.config.plan import arguments
    from pipeline.running.run import job_of

    words = rewritten([*argv, *(word for word in usual if not chosen(argv, word.partition("=")[0]))])
    if mistake := misspelt(words) or unwritable(words):
        raise ConfigError(mistake)
    overrides, folder = _split(words)
    with said_plainly():
        alone = _alone(overrides, folder)
        with api.composed(*overrides, config_dir=folder) as cfg:
            policy_variants.check(cfg, alone or cfg)
            job = job_of(cfg)
    service = job.plan(name).stages[name]
    job.run(service.inputs.values())
    target = load(service.target, name)
    try:
        target(**arguments(service, lambda needed: job.store.path(service.inputs[needed])))
    except ValueError as problem:
        raise ConfigError(f"{name}: {problem}") from problem


def _alone(overrides: Sequence[str], folder: Path | None) -> "DictConfig | None":
    """The configuration without other policies beside the first; None where the words name none."""
    from pipeline import api
    from pipeline.config import policy_variants

    words = policy_variants.without(overrides)
    if words == overrides:
        return None
    with api.composed(*words, config_dir=folder) as found:
        return found


def usage(name: str, about: str) -> str:
    """What `--help` says: what the service is, its policies and its options, as the configuration has them."""
    policies = "\n".join(f"  {policy:<14}  {what}" for policy, what in choices((), "policy").items())
    return (
        f"usage: python -m serving.{name} +policy=NAME [GROUP=CHOICE ...] [OPTION=VALUE ...] [--config-dir DIR]\n\n"
        f"{about.strip()}\n\npolicies:\n{policies}\n\n"
        "options of its own, such as service.device=1 (all others are those of `python -m pipeline`):\n"
        f"{_section('service')}"
    )


def _section(name: str) -> str:
    """The lines of one section of the configuration, comments included."""
    lines = (conf_dir() / "config.yaml").read_text(encoding="utf-8").splitlines()
    at = lines.index(f"{name}:")
    end = next((i for i in range(at + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    return "\n".join(line for line in lines[at:end] if line.strip() and "_target_" not in line)


def _split(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """Overrides, and the folder of `--config-dir`; raises ConfigError for another flag."""
    overrides: list[str] = []
    folder, left = None, iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        if option in _FOLDER:
            folder = Path(value if equals else next(left, ""))
        elif word.startswith("-"):
            raise ConfigError(f"{option} is not an option here: a service takes overrides, --config-dir DIR and --help")
        else:
            overrides.append(word)
    if folder and not folder.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {folder}")
    return overrides, folder
