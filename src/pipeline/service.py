"""`python -m serving.cloud ...` and `python -m serving.device ...`: a process that serves until it is told to stop.

It is described as a stage is, from the same configuration, and needs the same artifacts; but it leaves none.
"""

import sys
from collections.abc import Sequence

from pipeline.errors import UserError

BAD_INPUT = 2
INTERRUPTED = 130


def main(name: str) -> None:
    """Runs the service `name` of the configuration that the command line composes."""
    try:
        run(name, sys.argv[1:])
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def run(name: str, argv: Sequence[str]) -> None:
    """Builds what the service needs, and calls its function; raises UserError for what a user can mend."""
    from pipeline import api
    from pipeline.arguments import misspelt, rewritten
    from pipeline.build import load
    from pipeline.errors import ConfigError
    from pipeline.plan import arguments
    from pipeline.run import job_of

    if unknown := misspelt(words := rewritten(argv)):
        raise ConfigError(unknown)
    with api.composed(*words) as cfg:
        job = job_of(cfg)
        service = job.plan(name).stages[name]
        job.run(service.inputs.values())
        target = load(service.target, name)
    try:
        target(**arguments(service, lambda needed: job.store.path(service.inputs[needed])))
    except ValueError as problem:
        raise ConfigError(f"{name}: {problem}") from problem
