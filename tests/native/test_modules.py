"""What configuration describes is not compiled where it has generic annotations, which a compiled class loses."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from native.modules import MODULES
from pipeline.config.build import load
from tests.support.conf_files import CONF

TARGETS = sorted(
    {
        target
        for file in CONF.rglob("*.yaml")
        for target in re.findall(r"_target_: *([\w.]+)", file.read_text(encoding="utf-8"))
        if target.startswith("serving.")
    }
)


def described(annotation: Any) -> Iterator[type]:
    """The dataclasses that a value of this annotation is made of."""
    if is_dataclass(annotation) and isinstance(annotation, type):
        yield annotation
        for hint in get_type_hints(annotation.__init__).values():
            yield from described(hint)
    for argument in get_args(annotation):
        yield from described(argument)


@pytest.mark.parametrize("path", TARGETS)
def test_no_compiled_class_that_configuration_describes_has_a_generic_annotation(path: str) -> None:
    target = load(path, "")
    hints = get_type_hints(inspect.getattr_static(target, "__init__") if isinstance(target, type) else target)
    reached = {target, *(each for name, hint in hints.items() if name != "return" for each in described(hint))}
    for each in reached:
        if isinstance(each, type) and each.__module__ in MODULES:
            found = get_type_hints(each.__init__)
            generic = [name for name, hint in found.items() if isinstance(get_origin(hint), type)]
            assert not generic, f"{each.__module__}.{each.__qualname__} is compiled: {generic}"
