"""Jobs of process pools that end as the kernel ends a process without memory."""

import os
import signal


def number_or_die(number: int) -> dict[str, int]:
    """The number; 0 kills its process."""
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": number}
