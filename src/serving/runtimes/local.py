"""Runtime `local`: the pair makes tokens and time here, devices and cloud in one process."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, get_args

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import Pace, PacingStats, RealTimeDriver
from serving.drivers.simulator import Observer
from serving.metrics.overhead import OverheadTimer
from serving.metrics.recorder import Recorder, SessionRecord
from serving.progress import Progress, silent
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import LinkOutageInjector

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.runtimes.runtime import RunResult


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

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()
    ) -> "RunResult":
        from serving.deployment.model_loading import load_models, make_queries
        from serving.runtimes.runtime import RunResult

        models = load_models(
            setup.pair.device,
            setup.pair.cloud,
            accelerator,
            setup.policy.engine_requirements,
            setup.workload.context_tokens,
        )
        with closing(models):
            asked = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, models.tokenizer)
            records, pacing, overhead = asyncio.run(self.run(setup, models, asked, progress, observers))
        here, notes = self.pace == "wall", (f"pace: {pacing.summary}", *models.notes())
        return RunResult(
            asked, records, models.tokenizer, models.cloud_layers, local_timing=here, notes=notes, overhead=overhead
        )

    async def run(
        self,
        setup: Setup,
        models: "LoadedModels",
        queries: "Sequence[Query]",
        progress: Progress = silent,
        observers: Sequence[Observer] = (),
    ) -> tuple[dict[str, SessionRecord], PacingStats, dict[str, float]]:
        """The records by session, how well the pace was kept, and what deciding cost."""
        cast = Topology(setup, models.cloud_layers)
        users, recorder = WorkloadClients(queries, cast.devices, progress), Recorder(cast.devices)
        names = (*cast.workers, *cast.devices)
        breaks = LinkOutageInjector(cast, names, lambda *what: live.post(*what), lambda: users.all_ended)
        live = RealTimeDriver(WallClock(), [recorder, breaks, *observers], self.pace)
        overhead = OverheadTimer(live)
        add_nodes(overhead, cast, ChipFactory(cast, models, queries), names)
        if self.shaped:
            connect_nodes(live, cast)
            breaks.start()
        live.on_session_end(partial(users.on_session_end, post=live.post, clock="real time"))
        users.start(live.post)
        try:
            await live.run(lambda: users.all_ended)
        finally:
            live.close()
        tokens = sum(len(record.tokens) for record in recorder.records.values())
        return recorder.records, live.pacing, overhead.metrics(cast.devices, cast.workers, tokens)
