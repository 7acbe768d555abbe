"""Who is served by which device: each serves one run at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.frontend.openai.admission import Line


class Seats:
    """A line before each device; who comes goes where fewest are."""

    def __init__(self, devices: int, bound: int, retry_after_s: float) -> None:
        self._lines = [Line(bound, retry_after_s) for _ in range(devices)]

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[int]:
        """The number of the device that one holds. Raises ApiError (429) where all lines are full."""
        number, line = min(enumerate(self._lines), key=lambda each: (each[1].busy, each[1].waiting))
        async with line.turn():
            yield number
