"""Runtime `local`: the pair makes tokens and time here, devices and cloud in one process."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, get_args

from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link, populate
from serving.drivers.clock import Wall
from serving.drivers.observer import Observer
from serving.drivers.real_time import Live, Pace, Pacing
from serving.metrics.overhead import Overhead
from serving.metrics.recorder import Record, Recorder
from serving.progress import Progress, silent
from serving.runtimes.clients import Users
from serving.runtimes.failures import Breaks

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query
    from serving.runtimes.runtime import Served


@dataclass(frozen=True)
class Local:
    """A run of a setup on the wall clock; times differ from run to run, and what hangs on them may too.

    With `pace` hardware every piece of work lasts as long as on the named hardware; with wall, as long as here, where
    one thread computes for all nodes in turn. `shaped` sends messages over the named links; else they arrive at once.
    """

    pace: Pace = "wall"
    shaped: bool = True
    machine: str = ""
    """Only names it, so that outputs shared by two machines keep a run of each."""
    detail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pace not in get_args(Pace):
            raise ValueError(f"runtime.pace is {self.pace!r}; it is wall (as fast as here) or hardware (as the chips)")

    @property
    def described(self) -> str:
        time = "the wall clock" if self.pace == "wall" else "the wall clock, work stretched to the chips above"
        return f"tokens come from the models, run here; time is {time}; links {'shaped' if self.shaped else 'are none'}"

    def check(self, setup: Setup) -> None:
        if any(tier.outages for tier in setup.hardware.tiers.values()):
            raise ValueError(
                "hardware.tiers: nodes fail (outages), and runtime=local plays all of them in one process, which does "
                "not; choose runtime=grpc, where they are killed, emulated or simulated"
            )

    def serve(self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()) -> "Served":
        from serving.deployment.model_loading import open_models, queries
        from serving.runtimes.runtime import Served

        models = open_models(
            setup.pair.device, setup.pair.cloud, accelerator, setup.policy.provision, setup.workload.tokens
        )
        with closing(models):
            asked = queries(setup.workload, setup.decoding, setup.seed, setup.devices, models.tokenizer)
            records, pacing, overhead = asyncio.run(self.play(setup, models, asked, progress, observers))
        here, notes = self.pace == "wall", (f"pace: {pacing.described}", *models.notes())
        return Served(asked, records, models.tokenizer, models.cloud_layers, here=here, notes=notes, overhead=overhead)

    async def play(
        self,
        setup: Setup,
        models: "Models",
        queries: "Sequence[Query]",
        progress: Progress = silent,
        observers: Sequence[Observer] = (),
    ) -> tuple[dict[str, Record], Pacing, dict[str, float]]:
        """The records by session, how well the pace was kept, and what deciding cost."""
        cast = Cast(setup, models.cloud_layers)
        users, recorder = Users(queries, cast.devices, progress), Recorder(cast.devices)
        names = (*cast.workers, *cast.devices)
        breaks = Breaks(cast, names, lambda *what: live.post(*what), lambda: users.over)
        live = Live(Wall(), [recorder, breaks, *observers], self.pace)
        overhead = Overhead(live)
        populate(overhead, cast, Chips(cast, models, queries), names)
        if self.shaped:
            link(live, cast)
            breaks.begin()
        live.on_end(partial(users.hear, post=live.post, clock="real time"))
        users.ask(live.post)
        try:
            await live.run(lambda: users.over)
        finally:
            live.close()
        tokens = sum(len(record.tokens) for record in recorder.records.values())
        return recorder.records, live.pacing, overhead.metrics(cast.devices, cast.workers, tokens)
