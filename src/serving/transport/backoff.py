"""How long to wait before connecting again."""

from serving.core.keyed_random import luck


class Backoff:
    """Exponential, with jitter from a seed, so that a fleet whose cloud restarts does not come back in one instant.

    Args:
        first_s, longest_s: the waits before jitter, which takes up to half away.
        stream: from `serving.core.keyed_random.key`.
    """

    def __init__(self, first_s: float, longest_s: float, stream: int) -> None:
        self._first_s, self._longest_s, self._stream = first_s, longest_s, stream
        self._failures = self._attempts = 0

    def next_s(self) -> float:
        wait_s = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._attempts += 1
        return wait_s * (0.5 + 0.5 * luck(self._stream, self._attempts, "reconnect"))

    def reset(self) -> None:
        """It worked: the next failure is a first one."""
        self._failures = 0
