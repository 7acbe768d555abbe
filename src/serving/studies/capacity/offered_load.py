"""Devices that are never idle: each asks again when it has its answer."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from serving.core.keyed_random import key, luck
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.messages import Begin
from serving.outcomes.outcomes import Outcomes
from serving.runtimes.clients import Post
from serving.workload import slo
from serving.workload.arrivals import ClosedLoop
from serving.workload.workload import Asked

FASTEST = 100.0
"""Tokens a second that no device gets: so many questions are prepared that none runs out of them."""
SEEN = 100
"""Answers, at least, that tell how long one usually is."""


class ExhaustedError(RuntimeError):
    """A device had more time than questions."""


@dataclass(frozen=True)
class Load:
    """`queries` of all devices, in order for each; `first_s` is when each device begins."""

    queries: Sequence[Query]
    first_s: Sequence[float]


def made(setup: Setup, outcomes: Outcomes, devices: int, duration_s: float, stagger_s: float) -> Load:
    """The load of a run of `duration_s`.

    Every device has one SLO class, drawn by the setup's seed. Devices begin within the first `stagger_s`, and the first
    answer of each is cut to a random part, so that none is in step with another.
    """
    arrivals, limit = setup.workload.arrivals, setup.workload.max_new_tokens
    if not isinstance(arrivals, ClosedLoop):
        raise ValueError(  # noqa: TRY004 - what a person wrote
            f"capacity is that of devices which ask again when they are answered; workload.arrivals is "
            f"{type(arrivals).__name__}, choose workload/arrivals=closed_loop"
        )
    classes, stream = slo.assign(setup.workload.slo, devices, setup.seed), key(setup.seed, "steady state")
    prompt = setup.workload.dataset.prompts()[0]

    def queries(turns: Iterable[int]) -> list[Query]:
        asked = [
            Asked(
                turn * devices + device, prompt, device, turn, None, arrivals.think_s, setup.workload.max_prompt_tokens,
                limit if turn else 1 + int(luck(stream, device, "first answer") * limit), classes[device],
            )
            for turn in turns
            for device in range(devices)
        ]  # fmt: skip
        return outcomes.queries(asked, setup.decoding, setup.seed)

    usual = fmean(query.call.limit for query in queries(range(1, 2 + ceil(SEEN / devices))))
    first_s = [luck(stream, device, "begin") * stagger_s for device in range(devices)]
    return Load(queries(range(2 + ceil(FASTEST * duration_s / usual))), first_s)


class Loop:
    """Asks the questions of a load; hears which sessions end."""

    def __init__(self, load: Load, names: Sequence[str], post: Post) -> None:
        self._names, self._post = names, post
        self._device: dict[str, int] = {}
        self._next: list[deque[Query]] = [deque() for _ in names]
        for query in load.queries:
            self._next[query.device].append(query)
        for device, at_s in enumerate(load.first_s):
            self._ask(device, at_s)

    def hear(self, session: str, now: float) -> None:
        """A session has ended. Raises ExhaustedError when its device has no further question."""
        device = self._device.pop(session)
        if not self._next[device]:
            raise ExhaustedError(f"{self._names[device]} was answered faster than {FASTEST:g} tokens/s")
        self._ask(device, now + self._next[device][0].think_s)

    def _ask(self, device: int, at_s: float) -> None:
        call = self._next[device].popleft().call
        self._device[call.session] = device
        self._post(at_s, self._names[device], Begin(call))
