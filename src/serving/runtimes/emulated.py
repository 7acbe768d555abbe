"""Runtime `emulated`: models on this machine compute the tokens, the named hardware and links a virtual time."""

import heapq
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from serving.deployment.setup import Setup
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.deployment.shards import Shard
    from serving.deployment.topology import Topology
    from serving.deployment.wiring import ChipFactory
    from serving.drivers.observer import Observer
    from serving.drivers.simulator import Simulator
    from serving.metrics.recorder import SessionRecord
    from serving.runtimes.clients import WorkloadClients
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
    may_divide: bool = False,
) -> "dict[str, SessionRecord]":
    """The records by session, on virtual time. Raises UnfinishedSessionsError if a session never ended.

    With `may_divide`, parts of the testbed that exchange no message are simulated one after the other if no observer
    sees it; for engines that compute for each session apart.
    """
    from serving.deployment.shards import divide
    from serving.deployment.topology import Topology
    from serving.deployment.wiring import ChipFactory
    from serving.drivers.observer import PerNodeObserver
    from serving.runtimes.clients import WorkloadClients

    topology = Topology(setup, models.cloud_layers, tokenizer=models.tokenizer)
    clients = WorkloadClients(queries, topology.devices, progress)
    make_chip = ChipFactory(topology, models, queries, shared_chip, reuse_prefixes)
    run = _SimulatedRun(topology, clients, make_chip, observers, detail)
    may_divide = may_divide and not shared_chip and all(isinstance(each, PerNodeObserver) for each in observers)
    shards = divide(topology) if may_divide else []
    records = run.serve_shards(shards) if len(shards) > 1 else run.serve_together()
    clients.check_all_ended(records)
    return records


@dataclass(frozen=True)
class _SimulatedRun:
    topology: "Topology"
    clients: "WorkloadClients"
    make_chip: "ChipFactory"
    observers: "Sequence[Observer]"
    detail: bool

    def serve_together(self) -> "dict[str, SessionRecord]":
        """All nodes in one simulation, with outages."""
        from serving.deployment.shards import whole_testbed
        from serving.drivers.observer import NodeObserver
        from serving.drivers.simulator import Simulator
        from serving.metrics.recorder import Recorder
        from serving.runtimes.failures import LinkOutageInjector, NodeCreatedHook, NodeFailureInjector

        topology, clients = self.topology, self.clients
        recorder, names = Recorder(topology.devices, self.detail), (*topology.workers, *topology.devices)
        link_outages = LinkOutageInjector(
            topology, names, lambda *event: simulator.post(*event), lambda: clients.all_ended
        )
        simulator = Simulator([recorder, *([link_outages] if link_outages.has_outages else []), *self.observers])
        observing = [observer.node_created for observer in self.observers if isinstance(observer, NodeObserver)]
        hooks: list[NodeCreatedHook] = [*observing, link_outages.node_created]
        failures = NodeFailureInjector(topology, simulator, self.make_chip, lambda: clients.all_ended, hooks)
        self._set_up(simulator, whole_testbed(topology), clients.queries)
        link_outages.start()
        failures.start()
        simulator.run()
        return recorder.records

    def serve_shards(self, shards: "Sequence[Shard]") -> "dict[str, SessionRecord]":
        """The same records, one shard after the other: what one works on fits better into a processor's caches."""
        from serving.drivers.simulator import Simulator, infrequent_gc
        from serving.metrics.recorder import Recorder

        found = []
        with infrequent_gc():
            for shard, queries in zip(shards, self._queries_by_shard(shards), strict=True):
                recorder = Recorder(shard.devices, self.detail)
                simulator = Simulator([recorder, *self.observers])
                self._set_up(simulator, shard, queries)
                simulator.run()
                found.append(recorder.records.values())
        return _merge_by_arrival(found, self.clients.queries)

    def _set_up(self, simulator: "Simulator", shard: "Shard", queries: "Sequence[Query]") -> None:
        """Adds a shard's nodes and links, and posts its first requests."""
        from serving.deployment.wiring import add_nodes, connect_nodes

        add_nodes(simulator, self.topology, self.make_chip, (*shard.workers, *shard.devices))
        connect_nodes(simulator, self.topology, shard)
        simulator.on_session_end(partial(self.clients.on_session_end, post=simulator.post))
        self.clients.start(simulator.post, queries)

    def _queries_by_shard(self, shards: "Sequence[Shard]") -> "list[list[Query]]":
        """The queries of each shard's devices, in their order."""
        shard_of = {device: index for index, shard in enumerate(shards) for device in shard.devices}
        found: list[list[Query]] = [[] for _ in shards]
        for query in self.clients.queries:
            found[shard_of[self.topology.devices[query.device]]].append(query)
        return found


def _merge_by_arrival(
    found: "Sequence[Iterable[SessionRecord]]", queries: "Sequence[Query]"
) -> "dict[str, SessionRecord]":
    """The records of all shards by session, in the order of a joint run: at one instant as the clients start them."""
    posted = sorted(queries, key=lambda query: query.device if query.arrival_s is None else -1)
    position = {query.request.session: index for index, query in enumerate(posted)}
    merged = heapq.merge(*found, key=lambda record: (record.arrived_s, position[record.session]))
    return {record.session: record for record in merged}
