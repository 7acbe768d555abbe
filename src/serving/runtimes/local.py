"""Runtime `local`: devices and cloud in one process on the wall clock."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.observer import Observer
from serving.drivers.real_time import Pace, PacingStats, RealTimeDriver, check_pace
from serving.metrics.overhead import OverheadTimer
from serving.metrics.recorder import Recorder, SessionRecord
from serving.outcomes.shared_prompts import check_sharing
from serving.progress import Progress, silent
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import LinkOutageInjector

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.runtimes.runtime import RunResult


@dataclass(frozen=True)
class Local:
    """A run of a setup on the wall clock; times, and decisions that depend on them, differ from run to run.

    With `pace` hardware work lasts as long as on the named hardware; with wall as long as here, where one thread
    computes for all nodes in turn. With `shaped` messages take the time of the named links; else they arrive at once.
    """

    pace: Pace = "wall"
    shaped: bool = True
    machine: str = ""
    """Only a name, so that outputs shared by two machines keep a run of each."""
    detail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_pace(self.pace)

    @property
    def described(self) -> str:
        time = "the wall clock" if self.pace == "wall" else "the wall clock, work stretched to the chips above"
        return f"tokens come from the models, run here; time is {time}; links {'shaped' if self.shaped else 'are none'}"

    def check(self, setup: Setup) -> None:
        check_sharing(setup.policy, setup.workload.sharing, is_text=True)
        if any(tier.outages for tier in setup.hardware.tiers.values()):
            raise ValueError(
                "hardware.tiers: nodes fail (outages), and runtime=local runs all of them in one process, which does "
                "not fail; choose runtime=grpc, where they are killed, emulated or simulated"
            )
        device, cloud = setup.pair.device.threads, setup.pair.cloud.threads
        if self.pace == "wall" and device != cloud:
            raise ValueError(
                f"model.device.threads is {device} and model.cloud.threads {cloud}, and runtime=local runs both in one "
                "process, which has one number of threads; choose runtime=grpc, or set both alike"
            )

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()
    ) -> "RunResult":
        from serving.deployment.model_loading import load_models, make_queries
        from serving.runtimes.runtime import RunResult

        models = load_models(
            setup.models.device,
            setup.models.cloud,
            accelerator,
            setup.engine_requirements,
            setup.workload.context_tokens,
        )
        with closing(models):
            queries = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, models.tokenizer)
            records, pacing, overhead = asyncio.run(self.run(setup, models, queries, progress, observers))
        local_timing, notes = self.pace == "wall", (f"pace: {pacing.summary}", *models.notes())
        return RunResult(
            queries,
            records,
            models.tokenizer,
            models.cloud_layers,
            local_timing=local_timing,
            links_timed=self.shaped,
            paced=self.pace == "hardware",
            notes=notes,
            overhead=overhead,
        )

    async def run(
        self,
        setup: Setup,
        models: "LoadedModels",
        queries: "Sequence[Query]",
        progress: Progress = silent,
        observers: Sequence[Observer] = (),
    ) -> tuple[dict[str, SessionRecord], PacingStats, dict[str, float]]:
        """The records by session, the statistics of pacing, and the overhead of decisions."""
        topology = Topology(setup, models.cloud_layers, tokenizer=models.tokenizer)
        clients, recorder = WorkloadClients(queries, topology.devices, progress), Recorder(topology.devices)
        names = (*topology.workers, *topology.devices)
        link_outages = LinkOutageInjector(
            topology, names, lambda *event: driver.post(*event), lambda: clients.all_ended
        )
        driver = RealTimeDriver(WallClock(), [recorder, link_outages, *observers], self.pace)
        overhead = OverheadTimer(driver)
        add_nodes(overhead, topology, ChipFactory(topology, models, queries), names)
        if self.shaped:
            connect_nodes(driver, topology)
            link_outages.start()
        driver.on_session_end(partial(clients.on_session_end, post=driver.post, clock="real time"))
        clients.start(driver.post)
        try:
            await driver.run(lambda: clients.all_ended)
        finally:
            driver.close()
        tokens = sum(len(record.tokens) for record in recorder.records.values())
        return recorder.records, driver.pacing, overhead.metrics(topology.devices, topology.workers, tokens)
