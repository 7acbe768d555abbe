"""Rewrites a module so that mypyc makes more of it C: dataclasses with their constructors, and constants.

The constructor that `dataclass` would generate at run time stays Python. Here it is written out: the same parameters
and defaults in the same order. `slots` goes, since native classes have slots. `frozen` becomes `unsafe_hash`: the same
equality and hash, but fields can be assigned. Instances are pickled by their constructor's arguments. Constants become
`Final`, which need no look-up by name.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_CONSTANT = re.compile("_?[A-Z][A-Z0-9_]*")
_EMPTY = {"list": "[]", "dict": "{}", "set": "set()"}


@dataclass(frozen=True)
class _Edit:
    """Lines `first` to `last` (from 1) become `new`; `last` = `first` - 1 inserts."""

    first: int
    last: int
    new: tuple[str, ...] = ()


def rewritten(source: str) -> str:
    """The source with written-out constructors and with constants that are `Final`."""
    nodes = ast.parse(source).body
    edits = [edit for node in nodes for edit in _edits(node)]
    lines = source.split("\n")
    first_import = next(node.lineno for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    edits.append(_Edit(first_import, first_import - 1, ("from typing import Final",)))
    for edit in sorted(edits, key=lambda each: -each.first):
        lines[edit.first - 1 : edit.last] = edit.new
    return "\n".join(lines)


def field_annotations(source: str) -> dict[str, dict[str, str]]:
    """The annotated fields of each dataclass, as text."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and _options(node) is not None)
    return {node.name: {each.name: each.annotation for each in _fields(node)} for node in classes}


def _edits(node: ast.stmt) -> Iterator[_Edit]:
    if isinstance(node, ast.FunctionDef):
        for decorator in node.decorator_list:
            if ast.unparse(decorator).startswith("dataclass_transform"):  # a native function takes no attribute
                yield _Edit(decorator.lineno, decorator.end_lineno or 0)
    if isinstance(node, ast.Assign) and _CONSTANT.fullmatch(ast.unparse(node.targets[0])):
        name, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
        if not value.startswith("TypeVar("):
            yield _Edit(node.lineno, node.end_lineno or 0, (f"{name}: Final = {value}",))
    if not isinstance(node, ast.ClassDef):
        return
    for one in node.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__slots__":
            yield _Edit(one.lineno, one.end_lineno or 0)
    options = _options(node)
    if options is None:
        return
    decorator = _decorator(node)
    yield _Edit(decorator.lineno, decorator.end_lineno or 0, (f"@dataclass({', '.join(options)})",))
    end = node.end_lineno or 0
    yield _Edit(end + 1, end, ("", *_methods(node)))


def _decorator(node: ast.ClassDef) -> ast.expr:
    return next(one for one in node.decorator_list if ast.unparse(one).partition("(")[0] in ("message", "dataclass"))


def _options(node: ast.ClassDef) -> list[str] | None:
    """The arguments for `dataclass`; None for another class."""
    for decorator in node.decorator_list:
        name = ast.unparse(decorator).partition("(")[0]
        if name == "message":
            return ["init=False", "unsafe_hash=True"]
        if name == "dataclass":
            given = decorator.keywords if isinstance(decorator, ast.Call) else []
            options = {str(each.arg): ast.unparse(each.value) for each in given}
            options.pop("slots", None)
            if options.pop("frozen", None):
                options["unsafe_hash"] = "True"
            return ["init=False", *(f"{key}={value}" for key, value in options.items())]
    return None


@dataclass(frozen=True)
class _Field:
    name: str
    annotation: str
    value: ast.expr | None

    @property
    def options(self) -> dict[str, str]:
        """The arguments of `field(...)`."""
        if isinstance(self.value, ast.Call) and ast.unparse(self.value.func) == "field":
            return {str(each.arg): ast.unparse(each.value) for each in self.value.keywords}
        return {}

    @property
    def is_parameter(self) -> bool:
        return self.options.get("init") != "False"

    @property
    def made(self) -> str | None:
        """The expression that makes a default of its own for each instance."""
        factory = self.options.get("default_factory")
        return None if factory is None else _EMPTY.get(factory, f"({factory})()")

    @property
    def default(self) -> str | None:
        options = self.options
        return options.get("default") if options else ast.unparse(self.value) if self.value else None

    def parameter(self) -> str:
        if self.made:
            return f"{self.name}: {self.annotation} | None = None"
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default is not None else "")

    def assignment(self) -> str:
        if not self.is_parameter:
            return f"self.{self.name} = {self.made or self.default}"
        return f"self.{self.name} = " + (f"{self.made} if {self.name} is None else " if self.made else "") + self.name


def _fields(node: ast.ClassDef) -> list[_Field]:
    annotated = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    found = [_Field(ast.unparse(one.target), ast.unparse(one.annotation), one.value) for one in annotated]
    return [one for one in found if not one.annotation.startswith("ClassVar")]


def _methods(node: ast.ClassDef) -> Iterator[str]:
    fields = _fields(node)
    parameters = [one.parameter() for one in fields if one.is_parameter]
    yield f"    def __init__({', '.join(['self', *parameters])}) -> None:"
    yield from (f"        {one.assignment()}" for one in fields)
    if any(isinstance(one, ast.FunctionDef) and one.name == "__post_init__" for one in node.body):
        yield "        self.__post_init__()"
    values = "".join(f"self.{one.name}, " for one in fields if one.is_parameter)
    yield from ("", "    def __reduce__(self) -> tuple[object, ...]:", f"        return ({node.name}, ({values}))")
