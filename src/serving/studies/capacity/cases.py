"""What is compared: systems, on target models, under assumptions; each combination is a case."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.outcomes.outcomes import Outcomes
from serving.policy.policy import Policy
from serving.studies.capacity.load_test import Steady
from serving.studies.capacity.variation import leads, varied

Variants = Mapping[str, Mapping[str, Any]]
"""Name -> {dotted path below setup (`policy.draft.k`), `outcomes.` or `measure.`: value}; a path that begins with
`SYSTEM: ` is that system's alone.
"""


@dataclass(frozen=True)
class Case:
    """One combination, with the names of its parts."""

    system: str
    target: str
    variant: str
    setup: Setup
    outcomes: Outcomes
    measure: Steady

    def label(self, template: str, **more: Any) -> str:
        """`{system}`, `{target}`, `{variant}` and what else is named; raises ValueError for another name."""
        known = {"system": self.system, "target": self.target, "variant": self.variant, **more}
        try:
            return template.format(**known)
        except KeyError as problem:
            raise ValueError(f"{template!r} names {problem}; there are {', '.join(known)}") from None


def cases(
    setup: Setup,
    outcomes: Outcomes,
    measure: Steady,
    systems: Mapping[str, Policy],
    targets: Mapping[str, Architecture],
    variants: Variants,
) -> list[Case]:
    """All of them; without systems the setup's own policy, without targets its own pair.

    A variant's path that a system does not have (`policy.draft.k` where nothing is drafted) leaves that system as it
    is. Raises ValueError for a path that no system has, and for values that a class refuses.
    """
    own = systems or {setup.policy.name: setup.policy}
    timed = targets or {setup.pair.cloud.timing.name: setup.pair.cloud.timing}
    named = variants or {"": {}}
    found = [
        _case(system, policy, target, timing, variant, changes, (setup, outcomes, measure))
        for target, timing in timed.items()
        for variant, changes in named.items()
        for system, policy in own.items()
    ]
    for variant, changes in named.items():
        for path in changes:
            if not any(case.variant == variant and _known(case, path) for case in found):
                raise ValueError(f"variants: {variant!r} changes {path!r}, which no system has")
    return found


def _case(
    system: str,
    policy: Policy,
    target: str,
    timing: Architecture,
    variant: str,
    changes: Mapping[str, Any],
    base: tuple[Setup, Outcomes, Steady],
) -> Case:
    setup, outcomes, measure = base
    pair = replace(setup.pair, cloud=replace(setup.pair.cloud, timing=timing))
    case = Case(system, target, variant, replace(setup, policy=policy, pair=pair), outcomes, measure)
    return varied(case, dict(_there(case, changes)))


def _there(case: Case, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in changes.items():
        if _known(case, path):
            yield _below(path), value


def _known(case: Case, path: str) -> bool:
    own, _, rest = path.rpartition(": ")
    return own in ("", case.system) and leads(case, _below(rest))


def _below(path: str) -> str:
    rest = path.rpartition(": ")[2]
    return rest if rest.startswith(("outcomes.", "measure.")) else f"setup.{rest}"
