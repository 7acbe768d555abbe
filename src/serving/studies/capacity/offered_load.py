"""The load of a load test: closed loops whose devices send the next request after each answer."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from serving.core.keyed_random import key, uniform
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.messages import RequestArrived
from serving.outcomes.outcomes import OutcomeSource
from serving.outcomes.shared_prompts import check_unshared
from serving.runtimes.clients import PostRequest
from serving.workload import slo
from serving.workload.arrivals import ClosedLoop
from serving.workload.prompt import BLANK_PROMPT
from serving.workload.slo import SloClass
from serving.workload.workload import Workload, WorkloadRequest

MAX_TOKENS_PER_S = (100.0, 400.0, 1600.0, 6400.0)
"""Bounds on a device's tokens per second, which give the number of requests to prepare; a next one is tried where a
device is faster.
"""
_STREAM = "steady state"
"""The name of the random numbers by which devices are out of step."""
MIN_SAMPLED_ANSWERS = 100
"""The fewest answers from which the mean length is estimated."""


class OutOfQueriesError(ValueError):
    """A device ran out of prepared requests."""


@dataclass(frozen=True)
class OfferedLoad:
    """`queries` of all devices, in order for each; `start_times_s` are the start times of the devices.

    `max_tokens_per_s`: there are enough queries for devices that get at most so many; None: a device stops after its
    last query.
    """

    queries: Sequence[Query]
    start_times_s: Sequence[float]
    max_tokens_per_s: float | None = None


def closed_loop(setup: Setup) -> ClosedLoop:
    """The arrivals of the setup. Raises ValueError for others than a closed loop."""
    arrivals = setup.workload.arrivals
    if not isinstance(arrivals, ClosedLoop):
        raise ValueError(  # noqa: TRY004 - what a person wrote
            f"capacity is measured with closed loops; workload.arrivals is "
            f"{type(arrivals).__name__}, choose workload/arrivals=closed_loop"
        )
    return arrivals


def make_load(
    setup: Setup, outcomes: OutcomeSource, num_devices: int, duration_s: float, stagger_s: float,
    max_tokens_per_s: float = MAX_TOKENS_PER_S[0],
) -> OfferedLoad:  # fmt: skip
    """The load of a run of `duration_s`, enough for devices that get at most `max_tokens_per_s`.

    Every device has one SLO class, drawn with the setup's seed. Devices start within the first `stagger_s`, or
    within the think time if that is longer, and the first answer of each has a random part of the length, so that
    devices are out of step. The source of outcomes chooses the prompts: a trace deals those that it has onto them.
    """
    think_s = closed_loop(setup).think_s
    check_unshared(setup.policy)
    classes = slo.assign_classes(setup.workload.slo, num_devices, setup.seed)

    def queries(turns: Iterable[int]) -> list[Query]:
        requests = requests_of_turns(setup.workload, turns, classes, setup.seed, think_s)
        return outcomes.make_queries(requests, setup.decoding, setup.seed)

    usual = fmean(
        query.request.max_new_tokens for query in queries(range(1, 2 + ceil(MIN_SAMPLED_ANSWERS / num_devices)))
    )
    turns = range(2 + ceil(max_tokens_per_s * duration_s / usual))
    first_s = start_times_s(num_devices, max(stagger_s, think_s), setup.seed)
    return OfferedLoad(queries(turns), first_s, max_tokens_per_s)


def requests_of_turns(
    workload: Workload, turns: Iterable[int], classes: Sequence[SloClass | None], seed: int, think_s: float = 0.0
) -> list[WorkloadRequest]:
    """One request of each device in each of these turns; `classes` are the devices'.

    A device's answer of turn 0 has a random part of the length, so that devices are out of step.
    """
    stream, limit = key(seed, _STREAM), workload.max_new_tokens
    return [
        WorkloadRequest(
            turn * len(classes) + device,
            BLANK_PROMPT,
            device,
            turn,
            None,
            think_s,
            workload.max_prompt_tokens,
            limit if turn else 1 + int(uniform(stream, device, "first answer") * limit),
            slo_class,
            workload_max_new_tokens=limit,
        )
        for turn in turns
        for device, slo_class in enumerate(classes)
    ]


def start_times_s(num_devices: int, within_s: float, seed: int) -> list[float]:
    """When each device sends its first request: at a random time within the first `within_s`."""
    stream = key(seed, _STREAM)
    return [uniform(stream, device, "begin") * within_s for device in range(num_devices)]


class ClosedLoopClients:
    """Sends the requests of a load, the next of a device when its session ends."""

    def __init__(self, load: OfferedLoad, device_names: Sequence[str], post: PostRequest) -> None:
        self._device_names, self._post, self._max_tokens_per_s = device_names, post, load.max_tokens_per_s
        self._device_of: dict[str, int] = {}
        self._pending: list[deque[Query]] = [deque() for _ in device_names]
        for query in load.queries:
            self._pending[query.device].append(query)
        for device, at_s in enumerate(load.start_times_s):
            self._send_next(device, at_s)

    def on_session_end(self, session: str, now: float) -> None:
        """Sends the device's next request. Raises OutOfQueriesError if there should be one and is none."""
        device = self._device_of.pop(session)
        if self._pending[device]:
            self._send_next(device, now + self._pending[device][0].think_s)
        elif self._max_tokens_per_s is not None:
            raise OutOfQueriesError(
                f"{self._device_names[device]} was answered faster than {self._max_tokens_per_s:g} tokens/s, more than "
                "a load is prepared for; choose a slower chip or a larger model (hardware, model.device, model.cloud)"
            )

    def _send_next(self, device: int, at_s: float) -> None:
        request = self._pending[device].popleft().request
        self._device_of[request.session] = device
        self._post(at_s, self._device_names[device], RequestArrived(request))
