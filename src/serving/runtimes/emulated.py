"""Runtime `emulated`: models on this machine compute the tokens, the named hardware and links a virtual time."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from serving.deployment.setup import Setup
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.drivers.observer import Observer
    from serving.metrics.recorder import SessionRecord
    from serving.runtimes.runtime import RunResult


@dataclass(frozen=True)
class Emulated:
    """A run of a setup on virtual time; the same setup and seed give the same records."""

    shared_chip: bool = False
    """All nodes compute on one chip in turn, as in runtime `local` with `pace` wall."""
    detail: ClassVar[bool] = True
    described = "tokens come from the models, run here; time from the chips and link above"

    def check(self, setup: Setup) -> None:
        """Raises ValueError for text that is told what to share."""
        from serving.outcomes.shared_prompts import check_sharing

        check_sharing(setup.policy, setup.workload.sharing, is_text=True)

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: "Sequence[Observer]" = ()
    ) -> "RunResult":
        from serving.deployment.model_loading import load_models, make_queries
        from serving.runtimes.runtime import RunResult

        models = load_models(
            setup.models.device,
            setup.models.cloud,
            accelerator,
            setup.engine_requirements,
            setup.workload.context_tokens,
            wait_for_server=True,
        )
        with closing(models):
            queries = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, models.tokenizer)
            records = simulate(setup, models, queries, progress, observers, self.shared_chip, reuse_prefixes=True)
        return RunResult(queries, records, models.tokenizer, models.cloud_layers, notes=models.notes())


def simulate(
    setup: Setup,
    models: "LoadedModels",
    queries: "Sequence[Query]",
    progress: Progress = silent,
    observers: "Sequence[Observer]" = (),
    shared_chip: bool = False,
    detail: bool = True,
    reuse_prefixes: bool = False,
) -> "dict[str, SessionRecord]":
    """The records by session, on virtual time. Raises UnfinishedSessionsError if a session never ended."""
    from serving.deployment.topology import Topology
    from serving.deployment.wiring import ChipFactory, add_nodes, connect_nodes
    from serving.drivers.observer import NodeObserver
    from serving.drivers.simulator import Simulator
    from serving.metrics.recorder import Recorder
    from serving.runtimes.clients import WorkloadClients
    from serving.runtimes.failures import LinkOutageInjector, NodeCreatedHook, NodeFailureInjector

    topology = Topology(setup, models.cloud_layers, tokenizer=models.tokenizer)
    clients, recorder = WorkloadClients(queries, topology.devices, progress), Recorder(topology.devices, detail)
    names = (*topology.workers, *topology.devices)
    link_outages = LinkOutageInjector(topology, names, lambda *event: simulator.post(*event), lambda: clients.all_ended)
    simulator = Simulator([recorder, *([link_outages] if link_outages.has_outages else []), *observers])
    make_chip = ChipFactory(topology, models, queries, shared_chip, reuse_prefixes)
    observing = [observer.node_created for observer in observers if isinstance(observer, NodeObserver)]
    hooks: list[NodeCreatedHook] = [*observing, link_outages.node_created]
    failures = NodeFailureInjector(topology, simulator, make_chip, lambda: clients.all_ended, hooks)
    add_nodes(simulator, topology, make_chip, names)
    connect_nodes(simulator, topology)
    simulator.on_session_end(partial(clients.on_session_end, post=simulator.post))
    clients.start(simulator.post)
    link_outages.start()
    failures.start()
    simulator.run()
    clients.check_all_ended(recorder.records)
    return recorder.records
