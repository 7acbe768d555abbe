"""The nodes of every policy on one driver, and runs put to them."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from serving.deployment.queries import Models
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link
from serving.drivers.clock import Wall
from serving.drivers.observer import Observer
from serving.drivers.real_time import Live
from serving.frontend.device_gateway import Calls
from serving.frontend.shutdown import Guarded
from serving.frontend.ui.config import Show
from serving.frontend.ui.device_pool import NamedCast
from serving.frontend.ui.measures import Meter
from serving.frontend.ui.question import Question
from serving.frontend.ui.run import Run
from serving.frontend.ui.token_trace import Watch
from serving.nodes.device import Device
from serving.runtimes.failures import Breaks
from serving.runtimes.host import Host

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Stage:
    """Each policy has devices and a cloud of its own; all compute here, with the same models.

    With a `host` the first policy's cloud is another process, which that host dials.
    """

    def __init__(self, show: Show, models: Mapping[str, Models], host: Host | None = None) -> None:
        self.show, self.host = show, host
        self.tokenizer: Tokenizer = next(iter(models.values())).tokenizer
        self.casts = {name: self._cast(name, models[name].cloud_layers) for name in show.setups}
        self._timed = show.service.page.pace == "hardware"
        self._over = False
        afar = frozenset(self._devices(self.casts[self._first])) if host else frozenset()
        self.watch = Watch([name for cast in self.casts.values() for name in self._devices(cast)], afar)
        breaks = [self._breaks(cast) for cast in self.casts.values()] if show.service.page.shaped and not host else []
        self.live = self._populated(models, [self.watch, *breaks])
        self.calls = Calls(self.live)
        self.watch.tell = self.calls.tell
        self._boot, self._names = secrets.token_hex(4), count(1)
        for each in breaks:
            each.begin()

    @property
    def _first(self) -> str:
        return self.show.setup.policy.name

    def _cast(self, name: str, layers: int) -> Cast:
        """A remote cloud knows its own nodes by their plain names."""
        timeout_s = self.show.service.timeout_s
        if self.host and name == self._first:
            return self.host.cast
        return NamedCast(self.show.setups[name], layers, timeout_s, prefix=f"{name}.")

    def _devices(self, cast: Cast) -> Sequence[str]:
        return cast.devices[: self.show.devices]

    def _names_of(self, cast: Cast) -> Sequence[str]:
        """The nodes of a cast that are played here."""
        afar = self.host and cast is self.host.cast
        return (*self._devices(cast), *(() if afar else cast.workers))

    def _breaks(self, cast: Cast) -> Breaks:
        return Breaks(cast, self._names_of(cast), lambda *what: self.live.post(*what), lambda: self._over)

    def _populated(self, models: Mapping[str, Models], observers: Sequence[Observer]) -> Live:
        live = Live(Wall(), observers, self.show.service.page.pace, _survived)
        for policy, cast in self.casts.items():
            chips = Chips(cast, models[policy], ())
            for name in self._names_of(cast):
                node = cast.node(name)
                live.add(name, Guarded(node) if isinstance(node, Device) else node, chips(name))
            if self.show.service.page.shaped:
                link(live, cast)
        return live

    @property
    def cloud(self) -> bool:
        """Can the cloud be reached, where it is another process?"""
        return self.host is None or bool(self.host.reachable)

    def run(self, question: Question, prompt: tuple[int, ...], seat: int) -> Run:
        """A run on the device of that number."""
        cast = self.casts[question.offer.name]
        device = cast.devices[seat]
        afar = self.host is not None and cast is self.host.cast
        cloud = self.show.setup.hardware.top
        meter = Meter(cast.fleets[device], cloud, self.show.factor, self._timed, afar)
        session = f"{device}.{self._boot}.run-{next(self._names)}"
        reach = (lambda: self.cloud) if afar else (lambda: not self.watch.lost(device))
        return Run(question, prompt, device, session, self.calls, self.watch, meter, self.tokenizer, reach)

    def close(self) -> None:
        self._over = True
        self.live.close()


def _survived(problem: Exception) -> None:
    log.error("a model failed; the run that it worked for ends", exc_info=problem)
