"""Runtime `grpc`: devices and cloud as processes of this machine, one stream between each two of them."""

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.drivers.observer import Observer
from serving.drivers.real_time import Pace
from serving.network.link import Link
from serving.progress import Progress
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.transport.shaping.netem import shaping_notes
from serving.transport.shaping.tc import shaped_links

if TYPE_CHECKING:
    from serving.runtimes.runtime import RunResult

Shaping: TypeAlias = Literal["user", "tc", "none"]

_SHAPINGS: dict[str, str] = {
    "user": "shaped in user space",
    "tc": "shaped by the kernel (tc netem)",
    "none": "not shaped",
}


@dataclass(frozen=True)
class Grpc:
    """A run on the wall clock over real connections; each process writes a journal, and they are read as one.

    The named links stand before the transport, in each process (`shaping` user), or before the clouds' ports, in the
    kernel (tc; `serving.transport.shaping.netem.shaping_notes` says what is then otherwise), or nowhere (none).
    """

    pace: Pace = "wall"
    shaping: Shaping = "user"
    device_processes: int = 4
    """At most; devices beyond them share."""
    timeout_s: float | None = None
    """A device asks again when it has heard nothing for so long; null: it waits for the connection's own verdict."""
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    machine: str = ""
    """Only names it, so that outputs shared by two machines keep a run of each."""
    detail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pace not in get_args(Pace):
            raise ValueError(f"runtime.pace is {self.pace!r}; it is wall (as fast as here) or hardware (as the chips)")
        if self.shaping not in _SHAPINGS:
            raise ValueError(f"runtime.shaping is {self.shaping!r}; it must be one of {', '.join(_SHAPINGS)}")
        if self.device_processes < 1:
            raise ValueError(f"runtime.device_processes is {self.device_processes}; it must be at least 1")
        if bool(self.security.certificate) != bool(self.security.ca_certificate):
            given, missing = ("certificate", "authority") if self.security.certificate else ("authority", "certificate")
            raise ValueError(
                f"runtime.security: {given} is given without {missing}, but both ends of the connections are here: "
                "TLS needs certificate and key of the clouds, and the authority that the devices believe"
            )

    @property
    def described(self) -> str:
        time = "the wall clock" if self.pace == "wall" else "the wall clock, work stretched to the chips above"
        links = f"links are gRPC, {_SHAPINGS[self.shaping]}"
        return f"tokens come from the models, in processes of this machine; time is {time}; {links}"

    def check(self, setup: Setup) -> None:
        if self.shaping == "tc" and setup.hardware.tiers:
            raise ValueError(
                "runtime.shaping=tc shapes the links of devices, and this testbed has tiers with links between them; "
                "set runtime.shaping=user, or none"
            )

    def serve(
        self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()
    ) -> "RunResult":
        from serving.deployment.model_loading import load_tokenizer, make_queries, num_layers
        from serving.runtimes.process_group import ProcessGroup
        from serving.runtimes.runtime import RunResult

        tokenizer, _ = load_tokenizer(setup.pair.device, setup.pair.cloud)
        layers = num_layers(setup.pair.cloud)
        asked = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, tokenizer)
        cast = Topology(setup, layers)
        links = self._kernel_links(cast)
        with (
            shaped_links(links) if links else nullcontext() as shape,
            tempfile.TemporaryDirectory(prefix="tandem-") as folder,
        ):
            crew = ProcessGroup(self, cast, asked, accelerator, Path(folder), shape)
            pacing = crew.run(progress)
            records = crew.collect_records(observers)
        kept = "; ".join(f"{name}: {each.summary}" for name, each in pacing.items())
        here, notes = self.pace == "wall", (f"pace: {kept}", *shaping_notes(links))
        return RunResult(asked, records, tokenizer, layers, timeout_s=self.timeout_s, local_timing=here, notes=notes)

    def _kernel_links(self, topology: Topology) -> list[Link]:
        """Each device's, if it is the kernel that holds them; where no cloud is asked there is none."""
        return (
            [topology.device_link(name) for name in topology.devices]
            if self.shaping == "tc" and topology.workers
            else []
        )
