"""What work costs, counted as `serving.engine` counts it, without running it."""

from collections.abc import Sequence
from typing import TypeAlias

from serving.hardware.exit_depths import ExitDepths, with_head_loads
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import EarlyExitRule


class DraftLoads:
    """Loads of the passes of a `DraftWork` on a drafter of `layers` layers, all of which run in every pass; made once
    and shared by all sessions.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._cache: dict[tuple[int, int, int], tuple[ForwardLoad, ...]] = {}

    def pass_loads(self, start: int, num_inputs: int, passes: int) -> tuple[ForwardLoad, ...]:
        """`num_inputs` rows behind `start` cached tokens, then one row for each further pass; each pass asks the head
        once.
        """
        return self._cache.get((start, num_inputs, passes)) or self._make_loads(start, num_inputs, passes)

    def draft(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """A draft; `exit_layers` has an entry a pass."""
        return self.pass_loads(start, num_inputs, len(exit_layers))

    def prefill(self, session: str, start: int, num_inputs: int) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """The cache is filled, and nothing is written."""
        return (batch_load(self._layers, [(start, num_inputs)]),) if num_inputs else ()

    def branch(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """One token after each of several branches of `num_inputs` tokens in all; `exit_layers` has an entry a branch."""
        return (batch_load(self._layers, [(start, num_inputs)], float(len(exit_layers))),)

    def drop(self, session: str) -> None:
        """Nothing is known of single sessions."""

    def _make_loads(self, start: int, num_inputs: int, passes: int) -> tuple[ForwardLoad, ...]:
        spans = [(start, num_inputs), *((start + num_inputs + i, 1) for i in range(passes - 1))]
        made = self._cache[start, num_inputs, passes] = tuple(batch_load(self._layers, [span], 1.0) for span in spans)
        return made


class EarlyExitLoads:
    """The same for a drafter that leaves early: a pass takes along whoever left before it, so that its load depends on
    all that its session did.
    """

    def __init__(self, layers: int, exit_rule: EarlyExitRule) -> None:
        self._layers, self._checks = layers, exit_rule.check_layers(layers)
        self._sessions: dict[str, ExitDepths] = {}

    def draft(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:
        """A draft; `exit_layers` says of each pass after how many layers its token was read off."""
        ledger, found = self._truncated(session, start), list[ForwardLoad]()
        for i, depth in enumerate(exit_layers):
            found += self._read(ledger, 1 if i else num_inputs, 1, depth)
        return tuple(found)

    def prefill(self, session: str, start: int, num_inputs: int) -> tuple[ForwardLoad, ...]:
        """The cache is filled by all layers, and nothing is written."""
        ledger = self._truncated(session, start)
        return ledger.run_forward(num_inputs, self._layers) if num_inputs else ()

    def branch(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:
        """All branches go on until the last one's token is read off; they leave no cache behind."""
        ledger = self._truncated(session, start)
        found = self._read(ledger, num_inputs, len(exit_layers), max(exit_layers))
        ledger.truncate(start)
        return found

    def drop(self, session: str) -> None:
        """The session's cache is gone."""
        self._sessions.pop(session, None)

    def _truncated(self, session: str, start: int) -> ExitDepths:
        ledger = self._sessions.get(session)
        if ledger is None:
            ledger = self._sessions[session] = ExitDepths(self._layers)
        ledger.truncate(start)
        return ledger

    def _read(
        self, ledger: ExitDepths, num_tokens: int, num_tokens_out: int, exit_layer: int
    ) -> tuple[ForwardLoad, ...]:
        vain = self._checks.index(exit_layer) if exit_layer < self._layers else len(self._checks)
        return with_head_loads(ledger.run_forward(num_tokens, exit_layer), num_tokens_out, vain)


LoadCounter: TypeAlias = DraftLoads | EarlyExitLoads


def load_counter(layers: int, exit_rule: EarlyExitRule | None) -> LoadCounter:
    """Who counts the loads of a drafter that leaves early by this rule, or not at all."""
    return EarlyExitLoads(layers, exit_rule) if exit_rule else DraftLoads(layers)


def summed(loads: Sequence[ForwardLoad]) -> ForwardLoad:
    """The sums of forwards of as many layers: the same seconds, but for rounding, in a quarter of the time."""
    _, rows, interactions, cached, head_rows, forwards, further = map(sum, zip(*loads, strict=True))
    return ForwardLoad(loads[0].layers, rows, interactions, cached, head_rows, int(forwards), int(further))
