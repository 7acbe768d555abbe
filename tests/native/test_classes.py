"""Sources rewritten for mypyc still mean the same to Python."""

import dataclasses
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from native.classes import field_annotations, rewritten
from native.modules import MODULES, source_path

SOURCE = '''"""A module."""

from dataclasses import dataclass, field

_LIMIT = 4
"""A limit."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    names: list[str] = field(default_factory=list)
    y: int = _LIMIT
    sum: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sum", self.x + self.y)


class Plain:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1
'''


def executed(source: str, name: str) -> Any:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@pytest.fixture
def both() -> Any:
    yield executed(SOURCE, "module_before"), executed(rewritten(SOURCE), "module_after")
    del sys.modules["module_before"], sys.modules["module_after"]


def test_constructors_are_written_out_with_the_same_parameters(both: Any) -> None:
    before, after = both
    assert list(inspect.signature(before.Point).parameters) == list(inspect.signature(after.Point).parameters)
    one, other = after.Point(1), after.Point(1)
    assert (one.x, one.names, one.y, one.sum) == (1, [], 4, 5)
    assert one == other
    assert one.names is not other.names
    assert [(f.name, f.default, f.init) for f in dataclasses.fields(before.Point)] == [
        (f.name, f.default, f.init) for f in dataclasses.fields(after.Point)
    ]
    assert dataclasses.replace(one, x=2).sum == 6
    assert pickle.loads(pickle.dumps(one)) == one


def test_constants_are_final_and_slots_are_gone() -> None:
    text = rewritten(SOURCE)
    assert "_LIMIT: Final = 4" in text
    assert "slots" not in text
    assert "frozen" not in text


def test_annotations_are_kept_for_the_classes_that_lose_them() -> None:
    assert field_annotations(SOURCE) == {"Point": {"x": "int", "names": "list[str]", "y": "int", "sum": "int"}}


@pytest.mark.parametrize("name", MODULES)
def test_every_compiled_module_can_be_rewritten(name: str) -> None:
    source = source_path(name).read_text(encoding="utf-8")
    compile(rewritten(source), name, "exec")
    assert "cached_property" not in source, "a native class has no place for it"
