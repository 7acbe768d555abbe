"""Runtime `grpc`: devices and cloud as processes of this machine, one stream between each two of them."""

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.drivers.observer import Observer
from serving.drivers.real_time import Pace, check_pace
from serving.messages import INF
from serving.network.link import Link
from serving.outcomes.shared_prompts import check_sharing
from serving.progress import Progress
from serving.runtimes.node_process import ProcessOptions
from serving.runtimes.process_group import ProcessGroup
from serving.runtimes.runtime import RunResult
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.transport.shaping.netem import common_link, shaping_notes
from serving.transport.shaping.tc import shaped_links

Shaping: TypeAlias = Literal["user", "tc", "none"]

_SHAPINGS: dict[str, str] = {
    "user": "shaped in user space",
    "tc": "shaped by the kernel (tc netem)",
    "none": "not shaped",
}


@dataclass(frozen=True)
class Grpc:
    """A run on the wall clock over real connections. Each process writes an event log; the results come from all.

    shaping: where messages are delayed as on the named links. user: in each process, before the transport. tc: in the
        kernel, before the clouds' ports (`serving.transport.shaping.netem.shaping_notes` has the differences). none:
        nowhere.
    """

    pace: Pace = "wall"
    shaping: Shaping = "user"
    device_processes: int = 4
    """The most processes for devices; further devices share them."""
    timeout_s: float | None = None
    """A device sends its request again after this time without an answer; null: only after a lost connection."""
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    machine: str = ""
    """Only a name, so that outputs shared by two machines keep a run of each."""
    detail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_pace(self.pace)
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(
                f"runtime.timeout_s is {self.timeout_s}; it must be above 0 s, or null: a device then sends again only "
                "after a lost connection"
            )
        if self.shaping not in _SHAPINGS:
            raise ValueError(f"runtime.shaping is {self.shaping!r}; it must be one of {', '.join(_SHAPINGS)}")
        if self.device_processes < 1:
            raise ValueError(f"runtime.device_processes is {self.device_processes}; it must be at least 1")
        if bool(self.security.certificate) != bool(self.security.ca_certificate):
            names = ["certificate", "ca_certificate"]
            given, missing = names if self.security.certificate else reversed(names)
            raise ValueError(
                f"runtime.security: {given} is given without {missing}, but both ends of the connections are here: "
                "TLS needs certificate and private_key of the clouds, and the ca_certificate that the devices trust"
            )

    @property
    def described(self) -> str:
        time = "the wall clock" if self.pace == "wall" else "the wall clock, work stretched to the chips above"
        links = f"links are gRPC, {_SHAPINGS[self.shaping]}"
        return f"tokens come from the models, in processes of this machine; time is {time}; {links}"

    def check(self, setup: Setup) -> None:
        check_sharing(setup.policy, setup.workload.sharing, is_text=True)
        running, most = setup.workload.max_concurrency, self.limits.sessions_per_node
        if running > most and setup.uses_target:
            raise ValueError(
                f"workload.max_concurrency is {running}, but a cloud keeps runtime.limits.sessions_per_node={most} "
                "sessions of one device; let fewer run, or allow more"
            )
        if self.shaping == "tc" and setup.hardware.tiers:
            raise ValueError(
                "runtime.shaping=tc shapes the links of devices, and this testbed has tiers with links between them; "
                "set runtime.shaping=user, or none"
            )
        if self.shaping == "tc" and setup.uses_target:
            common_link([fleet.network or setup.access_link for fleet in setup.hardware.device_fleets])

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()
    ) -> RunResult:
        from serving.deployment.model_loading import load_tokenizer, make_queries, num_layers

        tokenizer, _ = load_tokenizer(setup.models.device, setup.models.cloud)
        layers = num_layers(setup.pair.cloud)
        queries = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, tokenizer)
        topology = Topology(setup, layers)
        links = self._kernel_links(topology)
        with (
            shaped_links(links) if links else nullcontext() as apply_shaping,
            tempfile.TemporaryDirectory(prefix="tandem-") as folder,
        ):
            group = ProcessGroup(
                topology,
                queries,
                self._process_options(accelerator),
                self.device_processes,
                Path(folder),
                apply_shaping,
            )
            pacing = group.run(progress)
            records = group.collect_records(observers)
        summary = "; ".join(f"{name}: {each.summary}" for name, each in pacing.items())
        local_timing, notes = self.pace == "wall", (f"pace: {summary}", *shaping_notes(links))
        return RunResult(
            queries, records, tokenizer, layers, timeout_s=self.timeout_s, local_timing=local_timing,
            links_timed=self.shaping == "user", paced=self.pace == "hardware", notes=notes,
        )  # fmt: skip

    def _process_options(self, accelerator: str) -> ProcessOptions:
        timeout_s = INF if self.timeout_s is None else self.timeout_s
        return ProcessOptions(self.pace, self.shaping == "user", timeout_s, accelerator, self.security, self.limits)

    def _kernel_links(self, topology: Topology) -> list[Link]:
        """The devices' links if the kernel shapes them; none without a cloud."""
        if self.shaping != "tc":
            return []
        return [topology.device_link(name) for name in topology.devices if topology.workers]
