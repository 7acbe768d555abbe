"""The cases of a comparison: systems on target models under variants of assumptions; and a data set without text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar

from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.outcomes.outcomes import OutcomeSource
from serving.policy.policy import Policy
from serving.studies.capacity.load_test import LoadTest
from serving.workload.dataset import QualityTarget
from serving.workload.metrics import Metric
from serving.workload.prompt import BLANK_PROMPT, Prompt

T = TypeVar("T")


def with_changes(node: T, changes: Mapping[str, Any]) -> T:
    """`node`, a dataclass, with the value at each dotted path replaced; every class checks its new values.

    Raises LookupError that names the first missing field of a path.
    """
    for path, value in changes.items():
        node = _replaced(node, path.split("."), value, path)
    return node


def has_path(node: object, path: str) -> bool:
    """True if a dotted path leads to a field of this dataclass."""
    for name in path.split("."):
        if not _has_field(node, name):
            return False
        node = getattr(node, name)
    return True


def _replaced(node: T, names: list[str], value: Any, path: str) -> T:
    first, *rest = names
    if not _has_field(node, first):
        known = ", ".join(each.name for each in fields(node)) if is_dataclass(node) else "nothing below"
        raise LookupError(f"there is no {path!r}: {type(node).__name__} has no {first!r}, it has {known}")
    inner = _replaced(getattr(node, first), rest, value, path) if rest else value
    return replace(node, **{first: inner})  # type: ignore[type-var]


def _has_field(node: object, name: str) -> bool:
    return is_dataclass(node) and any(each.name == name for each in fields(node))


Variants = Mapping[str, Mapping[str, Any]]
"""Name -> {dotted path below setup (`policy.draft.k`), `outcomes.` or `load_test.`: value}; a path with the prefix
`SYSTEM: ` applies to that system only.
"""


@dataclass(frozen=True)
class Case:
    """One combination, with the names of its parts."""

    system: str
    target: str
    variant: str
    setup: Setup
    outcomes: OutcomeSource
    load_test: LoadTest

    def label(self, template: str, **more: Any) -> str:
        """The template with {system}, {target}, {variant} and `more` filled in. Raises ValueError for another name."""
        known = {"system": self.system, "target": self.target, "variant": self.variant, **more}
        try:
            return template.format(**known)
        except KeyError as problem:
            raise ValueError(f"{template!r} names {problem}; there are {', '.join(known)}") from None


def cases(
    setup: Setup,
    outcomes: OutcomeSource,
    load_test: LoadTest,
    systems: Mapping[str, Policy],
    targets: Mapping[str, Architecture],
    variants: Variants,
) -> list[Case]:
    """All combinations; without systems the setup's own policy, without targets its own pair.

    A variant does not change a system that lacks its path (`policy.draft.k` without drafting). Raises ValueError for a
    path that no system has, and for values that a class refuses.
    """
    own = systems or {setup.policy.name: setup.policy}
    timed = targets or {setup.pair.cloud.timed_architecture.name: setup.pair.cloud.timed_architecture}
    named = variants or {"": {}}
    found = [
        _case(system, policy, target, timing, variant, changes, (setup, outcomes, load_test))
        for target, timing in timed.items()
        for variant, changes in named.items()
        for system, policy in own.items()
    ]
    for variant, changes in named.items():
        for path in changes:
            if not any(case.variant == variant and _applies(case, path) for case in found):
                raise ValueError(f"variants: {variant!r} changes {path!r}, which no system has")
    return found


def _case(
    system: str,
    policy: Policy,
    target: str,
    timing: Architecture,
    variant: str,
    changes: Mapping[str, Any],
    base: tuple[Setup, OutcomeSource, LoadTest],
) -> Case:
    setup, outcomes, load_test = base
    pair = replace(setup.pair, cloud=replace(setup.pair.cloud, timed_architecture=timing))
    case = Case(system, target, variant, replace(setup, policy=policy, pair=pair), outcomes, load_test)
    return with_changes(case, dict(_applicable_changes(case, changes)))


def _applicable_changes(case: Case, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in changes.items():
        if _applies(case, path):
            yield _case_path(path), value


def _applies(case: Case, path: str) -> bool:
    own, _, rest = path.rpartition(": ")
    return own in ("", case.system) and has_path(case, _case_path(rest))


def _case_path(path: str) -> str:
    rest = path.rpartition(": ")[2]
    return rest if rest.startswith(("outcomes.", "load_test.")) else f"setup.{rest}"


@dataclass(frozen=True)
class BlankDataset:
    """One prompt without text for all requests; the source of outcomes decides its length."""

    name: ClassVar[str] = "blank"
    has_text: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[QualityTarget] = "none"

    def prompts(self) -> list[Prompt]:
        return [BLANK_PROMPT]
