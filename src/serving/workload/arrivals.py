"""Times and devices at which requests arrive: closed loop, Poisson process, episodes of one, or a recorded trace."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from math import inf, log1p
from pathlib import Path
from typing import Protocol

from serving.core.keyed_random import key, uniform
from serving.workload import records
from serving.workload.records import DataRecord


@dataclass(frozen=True)
class Arrival:
    """The start of one request on one device (counted from 0).

    `at_s` is in seconds from the start of the run. None means a closed loop: the first request of a device starts at 0,
    each later one `think_s` after the previous one ended. `prompt_tokens` and `new_tokens` are recorded lengths.
    """

    device: int
    at_s: float | None = None
    think_s: float = 0.0
    prompt_tokens: int | None = None
    new_tokens: int | None = None


class Arrivals(Protocol):
    """Assigns each of `n` requests its arrival; the same (n, devices, seed) gives the same list."""

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]: ...


def checked_times(arrivals: Arrivals, n: int, devices: int, seed: int) -> list[Arrival]:
    """The arrivals of `n` requests. Raises ValueError for another number of them, for devices that are not there, and
    for times that are no times: a class may be a user's.
    """
    found = arrivals.times(n, devices, seed)
    name = f"{type(arrivals).__name__}.times"
    if not isinstance(found, list) or len(found) != n or not all(isinstance(one, Arrival) for one in found):
        got = f"a list of {len(found)}" if isinstance(found, list) else type(found).__name__
        raise ValueError(f"{name} returned {got} for {n} requests; a list of as many Arrival objects is wanted")
    for index, one in enumerate(found):
        if not 0 <= one.device < devices:
            raise ValueError(f"{name}: request {index} is of device {one.device}; there are {devices}, from 0")
        for field, value in (("at_s", one.at_s), ("think_s", one.think_s)):
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name}: request {index} has {field}={value}; 0 or more seconds are wanted")
    return found


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Every device sends its next request `think_s` after its last answer; requests go to the devices in turn."""

    think_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.think_s < inf:
            raise ValueError(f"workload.arrivals.think_s must be 0 or more seconds, got {self.think_s}")

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:  # noqa: ARG002 - the protocol's argument
        return [Arrival(index % devices, think_s=self.think_s) for index in range(n)]


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Requests at `rate_per_s` over all devices together, each on a device drawn uniformly.

    Each device alone is a Poisson process of rate `rate_per_s / devices`. A request at a busy device waits there.
    """

    rate_per_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < inf:
            raise ValueError(f"workload.arrivals.rate_per_s must be above 0 requests/s, got {self.rate_per_s}")

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        stream, at_s, arrivals = key(seed, "arrivals"), 0.0, []
        for index in range(n):
            at_s -= log1p(-uniform(stream, index, "gap")) / self.rate_per_s
            arrivals.append(Arrival(_random_device(stream, index, devices), at_s))
        return arrivals


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Repeats a short experiment in one run (Hyperion, section V-B: 1 to 14 tasks).

    Every `episode_s` an episode of `tasks_per_episode` requests starts, the first at once, the others as a Poisson
    process.
    """

    tasks_per_episode: int = 14
    rate_per_s: float = 0.2
    episode_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.tasks_per_episode < 1:
            raise ValueError(f"workload.arrivals.tasks_per_episode must be 1 or more, got {self.tasks_per_episode}")
        for name in ("rate_per_s", "episode_s"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"workload.arrivals.{name} must be above 0, got {getattr(self, name)}")

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        stream, at_s, arrivals = key(seed, "arrivals"), 0.0, []
        for index in range(n):
            episode, task = divmod(index, self.tasks_per_episode)
            gap_s = -log1p(-uniform(stream, index, "gap")) / self.rate_per_s
            at_s = max(at_s, episode * self.episode_s) if task == 0 else at_s + gap_s
            arrivals.append(Arrival(_random_device(stream, index, devices), at_s))
        return arrivals


@dataclass(frozen=True, kw_only=True)
class AzureTrace:
    """The first requests of a trace in the format of AzurePublicDataset's LLM inference traces, from time 0.

    CSV with TIMESTAMP, ContextTokens, GeneratedTokens, in order of time. `speed` 2 halves all gaps. With `use_lengths`
    the recorded token counts limit each request's prompt and output; a short prompt stays short, and one token beside
    the chat template is left of any.
    Source: Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024.
    """

    path: Path | None = None
    speed: float = 1.0
    use_lengths: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.speed < inf:
            raise ValueError(f"workload.arrivals.speed must be above 0 (1 is as recorded), got {self.speed}")

    def times(self, n: int, devices: int, seed: int) -> list[Arrival]:
        """Raises ValueError if the trace is missing, malformed (naming the line) or shorter than `n`."""
        rows = list(islice(self._read_requests(), n))
        if len(rows) < n:
            raise ValueError(
                f"{self.path} has {len(rows)} requests, but {n} are needed; set workload.num_prompts lower"
            )
        stream, start = key(seed, "arrivals"), rows[0][0] if rows else datetime.min
        return [
            Arrival(
                _random_device(stream, index, devices),
                (at - start).total_seconds() / self.speed,
                prompt_tokens=prompt_tokens if self.use_lengths else None,
                new_tokens=new_tokens if self.use_lengths else None,
            )
            for index, (at, prompt_tokens, new_tokens) in enumerate(rows)
        ]

    def _read_requests(self) -> Iterator[tuple[datetime, int, int]]:
        if self.path is None:
            raise ValueError("a trace of arrivals needs a file: set workload.arrivals.path=FILE.csv")
        records.check_file(self.path, "workload.arrivals.path")
        last = datetime.min
        for row in records.csv_records(self.path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ",", quoted=True):
            at = _timestamp(row)
            if at < last:
                raise row.error("TIMESTAMP is earlier than the previous line; sort the trace by time")
            last = at
            yield at, _count(row, "ContextTokens"), _count(row, "GeneratedTokens")


def _random_device(stream: int, request_index: int, devices: int) -> int:
    return int(uniform(stream, request_index, "device") * devices)


def _timestamp(row: DataRecord) -> datetime:
    """In UTC, if the text has an offset from it."""
    text = row.text("TIMESTAMP")
    try:
        at = datetime.fromisoformat(text)
        at = at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    except (ValueError, OverflowError):
        raise row.error(f"TIMESTAMP is {text!r}, needed is a time like 2023-11-16 18:15:46.680") from None
    if _is_date(text):
        raise row.error(f"TIMESTAMP is {text!r}, a day; needed is a time like 2023-11-16 18:15:46.680")
    return at


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _count(row: DataRecord, name: str) -> int:
    count = row.integer(name)
    if count < 1:
        raise row.error(f"{name} is {count}, needed is 1 or more")
    return count
