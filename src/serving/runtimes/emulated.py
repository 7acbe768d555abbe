"""Runtime `emulated`: the pair makes the tokens here, the named hardware and links make a virtual time."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link, populate
from serving.drivers.observer import Observer, Registrar
from serving.drivers.simulator import Simulator
from serving.metrics.recorder import Record, Recorder
from serving.progress import Progress, silent
from serving.runtimes.clients import Users
from serving.runtimes.failures import Breaks, Failures

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query
    from serving.runtimes.runtime import Served


@dataclass(frozen=True)
class Emulated:
    """A run of a setup on virtual time; the same setup and seed give the same record.

    With `shared` all nodes compute on one chip in turn, as in the runtime `local` at the pace of the wall.
    """

    shared: bool = False

    detail: ClassVar[bool] = True
    described = "tokens come from the models, run here; time from the chips and link above"

    def check(self, setup: Setup) -> None:
        """It plays all."""

    def serve(self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()) -> "Served":
        from serving.deployment.model_loading import open_models, queries
        from serving.runtimes.runtime import Served

        models = open_models(
            setup.pair.device, setup.pair.cloud, accelerator, setup.policy.provision, setup.workload.tokens, waits=True
        )
        with closing(models):
            asked = queries(setup.workload, setup.decoding, setup.seed, setup.devices, models.tokenizer)
            records = play(setup, models, asked, progress, observers, self.shared)
        return Served(asked, records, models.tokenizer, models.cloud_layers, notes=models.notes())


def play(
    setup: Setup,
    models: "Models",
    queries: "Sequence[Query]",
    progress: Progress = silent,
    observers: Sequence[Observer] = (),
    shared: bool = False,
    detail: bool = True,
) -> dict[str, Record]:
    """The records by session, on virtual time; raises StalledError when a session never ended."""
    cast = Cast(setup, models.cloud_layers)
    users, recorder = Users(queries, cast.devices, progress), Recorder(cast.devices, detail)
    names = (*cast.workers, *cast.devices)
    breaks = Breaks(cast, names, lambda *what: simulator.post(*what), lambda: users.over)
    simulator = Simulator([recorder, *([breaks] if breaks.expected else []), *observers])
    chips = Chips(cast, models, queries, shared)
    born = [observer.born for observer in observers if isinstance(observer, Registrar)]
    failures = Failures(cast, simulator, chips, lambda: users.over, born)
    populate(simulator, cast, chips, names)
    link(simulator, cast)
    simulator.on_end(partial(users.hear, post=simulator.post))
    users.ask(simulator.post)
    breaks.begin()
    failures.begin()
    simulator.run()
    users.check(recorder.records)
    return recorder.records
