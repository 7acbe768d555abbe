"""The loads of a drafter's passes, counted as the engines count them, without running a model."""

from collections.abc import Sequence
from typing import TypeAlias

from serving.hardware.exit_depths import ExitDepths, with_head_loads
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import EarlyExitRule


class DraftLoads:
    """Loads of a `DraftWork` on a drafter that runs all its layers in every pass; cached for all sessions."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._cache: dict[tuple[int, int, int], tuple[ForwardLoad, ...]] = {}

    def pass_loads(self, start: int, num_inputs: int, passes: int) -> tuple[ForwardLoad, ...]:
        """`num_inputs` tokens after `start` cached ones, then one token per pass; each pass uses the head once."""
        return self._cache.get((start, num_inputs, passes)) or self._make_loads(start, num_inputs, passes)

    def draft(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """The loads of a draft; `exit_layers` has an entry per pass."""
        return self.pass_loads(start, num_inputs, len(exit_layers))

    def prefill(self, session: str, start: int, num_inputs: int) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """The loads of filling the cache without a draft."""
        return (batch_load(self._layers, [(start, num_inputs)]),) if num_inputs else ()

    def branch(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:  # noqa: ARG002
        """The loads of one token after each of several branches, which have `num_inputs` tokens in all."""
        return (batch_load(self._layers, [(start, num_inputs)], float(len(exit_layers))),)

    def drop(self, session: str) -> None:
        """There is no state of single sessions."""

    def move(self, session: str, to: str) -> None:
        """There is no state of single sessions."""

    def _make_loads(self, start: int, num_inputs: int, passes: int) -> tuple[ForwardLoad, ...]:
        spans = [(start, num_inputs), *((start + num_inputs + i, 1) for i in range(passes - 1))]
        made = self._cache[start, num_inputs, passes] = tuple(batch_load(self._layers, [span], 1.0) for span in spans)
        return made


def tree_loads(layers: int, start: int, num_inputs: int, levels: Sequence[int]) -> tuple[ForwardLoad, ...]:
    """The loads of a tree: `num_inputs` tokens after `start` cached ones, then the nodes of each further level, which
    stay in the cache until the tree is grown.
    """
    cached, found = start + num_inputs, [batch_load(layers, [(start, num_inputs)], 1.0)]
    for width in levels:
        found.append(batch_load(layers, [(cached, width)], float(width)))
        cached += width
    return tuple(found)


class EarlyExitLoads:
    """Loads of a drafter with early exit. A pass also runs the skipped layers of earlier tokens, so its load depends on
    the session's history.
    """

    def __init__(self, layers: int, exit_rule: EarlyExitRule) -> None:
        self._layers, self._checks = layers, exit_rule.check_layers(layers)
        self._sessions: dict[str, ExitDepths] = {}

    def draft(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:
        """The loads of a draft; `exit_layers` has the exit layer of each pass."""
        depths, found = self._truncated(session, start), list[ForwardLoad]()
        for i, exit_layer in enumerate(exit_layers):
            found += self._read(depths, 1 if i else num_inputs, 1, exit_layer)
        return tuple(found)

    def prefill(self, session: str, start: int, num_inputs: int) -> tuple[ForwardLoad, ...]:
        """The loads of filling the cache of all layers without a draft."""
        depths = self._truncated(session, start)
        return depths.run_forward(num_inputs, self._layers) if num_inputs else ()

    def branch(self, session: str, start: int, num_inputs: int, exit_layers: Sequence[int]) -> tuple[ForwardLoad, ...]:
        """The loads of branches: all run to the deepest exit layer, and leave no cache."""
        depths = self._truncated(session, start)
        found = self._read(depths, num_inputs, len(exit_layers), max(exit_layers))
        depths.truncate(start)
        return found

    def drop(self, session: str) -> None:
        """Forgets the session's cache."""
        self._sessions.pop(session, None)

    def move(self, session: str, to: str) -> None:
        """The cache of `session`, if there is one, becomes that of `to`."""
        if session in self._sessions:
            self._sessions[to] = self._sessions.pop(session)

    def _truncated(self, session: str, start: int) -> ExitDepths:
        depths = self._sessions.get(session)
        if depths is None:
            depths = self._sessions[session] = ExitDepths(self._layers)
        depths.truncate(start)
        return depths

    def _read(
        self, depths: ExitDepths, num_tokens: int, num_tokens_out: int, exit_layer: int
    ) -> tuple[ForwardLoad, ...]:
        failed_checks = self._checks.index(exit_layer) if exit_layer < self._layers else len(self._checks)
        return with_head_loads(depths.run_forward(num_tokens, exit_layer), num_tokens_out, failed_checks)


LoadCounter: TypeAlias = DraftLoads | EarlyExitLoads


def load_counter(layers: int, exit_rule: EarlyExitRule | None) -> LoadCounter:
    """The counter for a drafter with this rule of early exit; None: it runs all layers."""
    return EarlyExitLoads(layers, exit_rule) if exit_rule else DraftLoads(layers)


def summed(loads: Sequence[ForwardLoad]) -> ForwardLoad:
    """One load for forwards of equal layers: the same seconds, except for rounding, in a quarter of the time."""
    _, rows, interactions, cached, head_rows, forwards, further, continued = map(sum, zip(*loads, strict=True))
    return ForwardLoad(
        loads[0].layers, rows, interactions, cached, head_rows, int(forwards), int(further), int(continued)
    )
