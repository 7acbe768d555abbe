"""Runtime `grpc`: devices and cloud as processes of this machine, one stream between each two of them."""

import multiprocessing as mp
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from serving.cast import Cast
from serving.drivers.live import Pace, Pacing
from serving.drivers.observer import Observer
from serving.messages import INF
from serving.network import Link
from serving.progress import Progress
from serving.recorder import Record, Recorder
from serving.runtimes.part import Part, play
from serving.setup import Setup
from serving.shaping.netem import note
from serving.shaping.tc import Shape, shaped
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.users import Users

if TYPE_CHECKING:
    from serving.runtimes.runtime import Query, Served

Shaping: TypeAlias = Literal["user", "tc", "none"]

_SHAPINGS: dict[str, str] = {
    "user": "shaped in user space",
    "tc": "shaped by the kernel (tc netem)",
    "none": "not shaped",
}


_LEAVING_S = 5.0
"""How long a process that was told to stop may take."""


@dataclass(frozen=True)
class Grpc:
    """A run on the wall clock over real connections; each process writes a journal, and they are read as one.

    The named links stand before the transport, in each process (`shaping` user), or before the clouds' ports, in the
    kernel (tc; `serving.shaping.netem.note` says what is then otherwise), or nowhere (none).
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
        if bool(self.security.certificate) != bool(self.security.authority):
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

    def serve(self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()) -> "Served":
        from serving.open import depth, queries, spoken
        from serving.runtimes.runtime import Served

        tokenizer, _ = spoken(setup.pair.device, setup.pair.cloud)
        layers = depth(setup.pair.cloud)
        asked = queries(setup.workload, setup.decoding, setup.seed, setup.devices, tokenizer)
        cast = Cast(setup, layers)
        links = self._links_of_kernel(cast)
        with (
            shaped(links) if links else nullcontext() as shape,
            tempfile.TemporaryDirectory(prefix="tandem-") as folder,
        ):
            crew = _Crew(self, cast, asked, accelerator, Path(folder), shape)
            pacing = crew.play(progress)
            records = crew.records(observers)
        kept = "; ".join(f"{name}: {each.described}" for name, each in pacing.items())
        here, notes = self.pace == "wall", (f"pace: {kept}", *note(links))
        return Served(asked, records, tokenizer, layers, timeout_s=self.timeout_s, here=here, notes=notes)

    def _links_of_kernel(self, cast: Cast) -> list[Link]:
        """Each device's, if it is the kernel that holds them; where no cloud is asked there is none."""
        return [cast.link(name) for name in cast.devices] if self.shaping == "tc" and cast.workers else []


class _Crew:
    """The processes of one run."""

    def __init__(
        self, runtime: Grpc, cast: Cast, queries: "Sequence[Query]", accelerator: str, folder: Path, shape: Shape | None
    ) -> None:
        self.runtime, self.cast, self.queries = runtime, cast, queries
        self.accelerator, self.folder, self.shape = accelerator, folder, shape
        self.lines: dict[str, Connection] = {}

    def play(self, progress: Progress) -> dict[str, Pacing]:
        """Starts everybody, lets them meet, waits until all is answered; how well each process kept the pace."""
        cast, crowd = self.cast, min(self.runtime.device_processes, len(self.cast.devices))
        clouds = {names[0]: names for names in cast.clouds}
        devices = {f"devices-{i}": cast.devices[i::crowd] for i in range(crowd)}
        with self._running({**clouds, **devices}):
            addresses = {name: self._hear(name, "listening") for name in clouds}
            if self.shape:
                self.shape(addresses.values())
            self._tell(devices, "dial", {node: addresses[name] for name, nodes in clouds.items() for node in nodes})
            for name in devices:
                self._hear(name, "joined")
            self._tell(self.lines, "play", time.monotonic())
            self._wait_for_all(progress)
            self._tell(self.lines, "stop", None)
            return {name: self._hear(name, "done") for name in self.lines}

    def records(self, observers: Sequence[Observer]) -> dict[str, Record]:
        """What all journals together say, as if one driver had been watched."""
        from serving.log.entry import feed
        from serving.log.merge import merge

        recorder = Recorder(self.cast.devices)
        for observer in (recorder, *observers):
            feed(merge(sorted(self.folder.glob("*.jsonl"))), observer)
        Users(self.queries, self.cast.devices).check(recorder.records)
        return recorder.records

    def _wait_for_all(self, progress: Progress) -> None:
        ended: set[str] = set()
        began = time.monotonic()
        while len(ended) < len(self.queries):
            for line in wait(list(self.lines.values())):
                assert isinstance(line, Connection)
                ended.add(self._next(line, "ended"))
            progress(len(ended), len(self.queries), f"{time.monotonic() - began:.0f} s of real time")

    @contextmanager
    def _running(self, parts: dict[str, tuple[str, ...]]) -> Iterator[None]:
        context = mp.get_context("spawn")
        processes = []
        try:
            for name, nodes in parts.items():
                here, there = context.Pipe()
                # no daemon: a cloud may start processes of its own; they all end with the line to their parent
                process = context.Process(target=play, args=(self._part(name, nodes), there), name=name)
                process.start()
                there.close()
                self.lines[name] = here
                processes.append(process)
            yield
            for process in processes:
                process.join(_LEAVING_S)
        finally:
            for process in processes:
                process.terminate()
                process.join()

    def _part(self, name: str, nodes: tuple[str, ...]) -> Part:
        runtime, cast = self.runtime, self.cast
        queries = tuple(q for q in self.queries if cast.devices[q.device] in nodes)
        return Part(
            cast.setup, cast.layers, nodes, queries, runtime.pace, runtime.shaping == "user",
            runtime.timeout_s or INF, self.accelerator, "127.0.0.1:0", runtime.security, runtime.limits, cast.digest,
            self.folder / f"{name}.jsonl",
        )  # fmt: skip

    def _tell(self, names: Any, word: str, value: Any) -> None:
        for name in names:
            self.lines[name].send((word, value))

    def _hear(self, name: str, word: str) -> Any:
        return self._next(self.lines[name], word)

    def _next(self, line: Connection, word: str) -> Any:
        try:
            said, value = line.recv()
        except EOFError:
            name = next(name for name, each in self.lines.items() if each is line)
            raise RuntimeError(f"the process {name} died; what it said is above") from None
        if said != word:
            raise RuntimeError(value if said == "failed" else f"a process said {said!r} where {word!r} was due")
        return value
