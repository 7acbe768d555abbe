"""Slot choices keep nothing: one object serves all sessions and nodes, and a replay asks it again."""

from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from inspect import Parameter, getattr_static, signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_MUTABLE = (dict, list, set, bytearray, deque)
_READ_ONLY = (Mapping, Sequence, Set)
_WRITABLE = (MutableMapping, MutableSequence, MutableSet)


def check_slots(policy: object) -> None:
    """Raises ValueError for a slot of the policy that is not stateless, as `check_stateless` says.

    For policies that a configuration chose: what measures or trains a policy puts slots into it that keep something.
    """
    for slot, choice in vars(policy).items():
        check_stateless(slot, choice)


def check_stateless(slot: str, choice: object) -> None:
    """Raises ValueError for a choice that holds a container which its methods could fill.

    A container that the configuration gave is none: one that is an option with another value than the default, or an
    option annotated as what cannot be written to (`Mapping`, `Sequence`).
    """
    for name, held in _attributes(choice):
        if isinstance(held, _MUTABLE) and not _is_option(choice, name, held):
            kind = type(held).__name__
            raise ValueError(
                f"policy.{slot}={type(choice).__name__} holds a {kind} in {name}: one slot object serves all sessions "
                "and nodes, and keeps nothing. Of a session it reads what the session has (session.scores, "
                "session.tokens; `session.monitor` has what the device measured); what a draft slot learns of earlier "
                "rounds belongs in the object that its new_learner() returns; constants belong in a tuple, a frozenset "
                "or a MappingProxyType, and an option that is a mapping is annotated Mapping"
            )


def _attributes(choice: object) -> Iterator[tuple[str, object]]:
    """(name, value) of what the object holds itself, and of what its class holds for all of them.

    What a `cached_property` keeps follows from the options.
    """
    own = getattr(choice, "__dict__", {})
    for name, value in own.items():
        if not isinstance(getattr_static(type(choice), name, None), cached_property):
            yield name, value
    for base in type(choice).__mro__:
        for name, value in vars(base).items():
            if name not in own and not (name.startswith("__") and name.endswith("__")):
                yield name, getattr(choice, name, None) if _is_slot(value) else value


def _is_slot(value: object) -> bool:
    """True for the descriptor of a name in `__slots__`."""
    return type(value).__name__ == "member_descriptor"


def _is_option(choice: object, name: str, held: Any) -> bool:
    """True if the object got `held` from outside, and may not be meant to write to it."""
    kind = type(choice)
    parameter = signature(kind).parameters.get(name)
    if parameter is None:
        return False
    return _is_read_only(_annotation(kind, name)) or (bool(held) and held != _default(kind, parameter))


def _annotation(kind: type, name: str) -> Any:
    try:
        return get_type_hints(kind if is_dataclass(kind) else kind.__init__).get(name)  # type: ignore[misc]
    except (NameError, TypeError):  # a name that only type checkers know
        return None


def _is_read_only(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_read_only(one) for one in get_args(annotation) if one is not NoneType)
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, _READ_ONLY) and not issubclass(kind, _WRITABLE)


def _default(kind: type, parameter: Parameter) -> object:
    made = [f.default_factory for f in fields(kind) if f.name == parameter.name] if is_dataclass(kind) else []
    return made[0]() if made and made[0] is not MISSING else parameter.default
