"""Runtime `emulated`: the pair makes the tokens here, the named hardware and links make a virtual time."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
from serving.drivers.simulator import NodeObserver, Observer, Simulator
from serving.metrics.recorder import Recorder, SessionRecord
from serving.progress import Progress, silent
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import LinkOutageInjector, NodeFailureInjector

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.runtimes.runtime import RunResult


@dataclass(frozen=True)
class Emulated:
    """A run of a setup on virtual time; the same setup and seed give the same record.

    With `shared_chip` all nodes compute on one chip in turn, as in the runtime `local` at the pace of the wall.
    """

    shared_chip: bool = False

    detail: ClassVar[bool] = True
    described = "tokens come from the models, run here; time from the chips and link above"

    def check(self, setup: Setup) -> None:
        """It plays all."""

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
            wait_for_server=True,
        )
        with closing(models):
            asked = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, models.tokenizer)
            records = simulate(setup, models, asked, progress, observers, self.shared_chip)
        return RunResult(asked, records, models.tokenizer, models.cloud_layers, notes=models.notes())


def simulate(
    setup: Setup,
    models: "LoadedModels",
    queries: "Sequence[Query]",
    progress: Progress = silent,
    observers: Sequence[Observer] = (),
    shared_chip: bool = False,
    detail: bool = True,
) -> dict[str, SessionRecord]:
    """The records by session, on virtual time; raises StalledError when a session never ended."""
    cast = Topology(setup, models.cloud_layers)
    users, recorder = WorkloadClients(queries, cast.devices, progress), Recorder(cast.devices, detail)
    names = (*cast.workers, *cast.devices)
    breaks = LinkOutageInjector(cast, names, lambda *what: simulator.post(*what), lambda: users.all_ended)
    simulator = Simulator([recorder, *([breaks] if breaks.has_outages else []), *observers])
    chips = ChipFactory(cast, models, queries, shared_chip)
    born = [observer.node_created for observer in observers if isinstance(observer, NodeObserver)]
    failures = NodeFailureInjector(cast, simulator, chips, lambda: users.all_ended, born)
    add_nodes(simulator, cast, chips, names)
    connect_nodes(simulator, cast)
    simulator.on_session_end(partial(users.on_session_end, post=simulator.post))
    users.start(simulator.post)
    breaks.start()
    failures.start()
    simulator.run()
    users.check_all_ended(recorder.records)
    return recorder.records
