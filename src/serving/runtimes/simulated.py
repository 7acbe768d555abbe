"""Runtime `simulated`: tokens are looked up, time is computed; from one device to ten thousand."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.deployment.setup import Setup
from serving.drivers.observer import Observer
from serving.outcomes.outcomes import Outcomes
from serving.progress import Progress
from serving.runtimes.emulated import play
from serving.runtimes.runtime import Served


@dataclass(frozen=True)
class Simulated:
    """The emulated runtime without models: the same nodes, links and clock, and outcomes that somebody recorded."""

    outcomes: Outcomes
    shared: bool = False
    """All nodes compute on one chip in turn, as in the runtime `local` at the pace of the wall."""
    detail: bool = True
    """Keep the time line and the draft chunks of every request, which are most of the bytes of a large run."""

    @property
    def described(self) -> str:
        return f"{self.outcomes.described}; time comes from the chips and link above"

    def check(self, setup: Setup) -> None:
        """It plays all."""

    def serve(self, setup: Setup, accelerator: str, progress: Progress, observers: Sequence[Observer] = ()) -> Served:  # noqa: ARG002
        asked = self.outcomes.queries(setup.workload.calls(setup.devices), setup.decoding, setup.seed)
        opened = self.outcomes.open(asked, setup.policy, setup.seed)
        records = play(setup, opened, asked, progress, observers, self.shared, self.detail)
        return Served(
            asked, records, opened.tokenizer, opened.cloud_layers, is_text=self.outcomes.is_text, notes=opened.notes()
        )
