"""Runtime `simulated`: tokens are looked up, time is computed; from one device to ten thousand."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.deployment.setup import Setup
from serving.drivers.simulator import Observer
from serving.outcomes.outcomes import OutcomeSource
from serving.progress import Progress
from serving.runtimes.emulated import simulate
from serving.runtimes.runtime import RunResult


@dataclass(frozen=True)
class Simulated:
    """The emulated runtime without models: the same nodes, links and clock, and outcomes that somebody recorded."""

    outcomes: OutcomeSource
    shared_chip: bool = False
    """All nodes compute on one chip in turn, as in the runtime `local` at the pace of the wall."""
    detail: bool = True
    """Keep the time line and the draft chunks of every request, which are most of the bytes of a large run."""

    @property
    def described(self) -> str:
        return f"{self.outcomes.described}; time comes from the chips and link above"

    def check(self, setup: Setup) -> None:
        """It plays all."""

    def serve(
        self,
        setup: Setup,
        accelerator: str,  # noqa: ARG002
        progress: Progress,
        observers: Sequence[Observer] = (),
    ) -> RunResult:
        asked = self.outcomes.make_queries(setup.workload.requests(setup.num_devices), setup.decoding, setup.seed)
        opened = self.outcomes.open(asked, setup.policy, setup.seed)
        records = simulate(setup, opened, asked, progress, observers, self.shared_chip, self.detail)
        return RunResult(
            asked, records, opened.tokenizer, opened.cloud_layers, is_text=self.outcomes.is_text, notes=opened.notes()
        )
