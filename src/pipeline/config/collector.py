"""Python's garbage collector while a configuration is composed.

What Hydra and OmegaConf make is cyclic and lives until the command ends; to look through it again and again takes a
tenth of a plan.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collects nothing in the block, or until `resume_collector` in it."""
    gc.unfreeze()  # what an earlier command of this process left
    gc.disable()
    try:
        yield
    finally:
        resume_collector()


def resume_collector() -> None:
    """Collects again what is made from now on; what there is stays as it is, also when the process ends."""
    gc.freeze()
    gc.enable()
