"""Runtime `simulated`: tokens are looked up, times are computed; for one device to ten thousand."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.deployment.setup import Setup
from serving.drivers.observer import Observer
from serving.outcomes.outcomes import OutcomeSource, PolicyChecking
from serving.outcomes.shared_prompts import check_sharing
from serving.progress import Progress
from serving.runtimes.emulated import simulate
from serving.runtimes.runtime import RunResult


@dataclass(frozen=True)
class Simulated:
    """The emulated runtime without models: the same nodes, links and clock; tokens come from a source of outcomes."""

    outcomes: OutcomeSource
    shared_chip: bool = False
    """All nodes compute on one chip in turn, as in runtime `local` with `pace` wall."""
    detail: bool = True
    """Keep the time line and the draft chunks of every request: most of the bytes of a large run."""

    @property
    def described(self) -> str:
        return f"{self.outcomes.described}; time comes from the chips and link above"

    def check(self, setup: Setup) -> None:
        """Raises ValueError for a policy whose drafts the source of outcomes does not know, and for prompts that say
        too little or too much of what they share.
        """
        if isinstance(self.outcomes, PolicyChecking):
            self.outcomes.check(setup.policy)
        check_sharing(setup.policy, setup.workload.sharing, self.outcomes.is_text)

    def serve(
        self,
        setup: Setup,
        accelerator: str,  # noqa: ARG002
        progress: Progress,
        observers: Sequence[Observer] = (),
    ) -> RunResult:
        queries = self.outcomes.make_queries(setup.workload.requests(setup.num_devices), setup.decoding, setup.seed)
        engines = self.outcomes.open(queries, setup.policy, setup.seed)
        records = simulate(setup, engines, queries, progress, observers, self.shared_chip, self.detail, may_divide=True)
        return RunResult(
            queries,
            records,
            engines.tokenizer,
            engines.cloud_layers,
            is_text=self.outcomes.is_text,
            notes=engines.notes(),
        )
