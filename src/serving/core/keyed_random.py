"""Keyed random numbers: the same (seed, session, position, purpose) always gives the same number.

So a decision does not depend on which other decisions were made before it, or on which node. `RandomDispatch` in
`policy/slots/dispatch.py` is the exception: its position counts the choices that were made before.
"""

from functools import cache
from zlib import crc32

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_NAME_MULTIPLIER = 0xD1B54A32D192ED03


def _mix(x: int) -> int:
    """SplitMix64 finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def key(seed: int, name: str) -> int:
    """The 64-bit stream of a name under a seed; the same in every process, unlike `hash(str)`."""
    return _mix((seed * _GOLDEN_GAMMA + crc32(name.encode()) * _NAME_MULTIPLIER + _GOLDEN_GAMMA) & _MASK)


def seed_for(seed: int, name: str) -> int:
    """The seed whose stream for `name` equals the stream of "" under `seed`; 64 bits, signed."""
    found = (seed - crc32(name.encode()) * _NAME_MULTIPLIER * pow(_GOLDEN_GAMMA, -1, _MASK + 1)) & _MASK
    return found - (_MASK + 1) if found >> 63 else found


@cache
def _salt(purpose: str) -> int:
    return crc32(purpose.encode()) * 0xA0761D6478BD642F + _GOLDEN_GAMMA


def uniform(stream: int, position: int, purpose: str) -> float:
    """A uniform number in [0, 1) for one purpose at one position of a stream (see `key`)."""
    return uniform_at(stream + _salt(purpose), position)


def substream(stream: int, purpose: str) -> int:
    """The stream of one purpose, for `uniform_at`."""
    return (stream + _salt(purpose)) & _MASK


def uniform_at(stream: int, position: int) -> float:
    """Equals `uniform(stream, position, purpose)` for a substream; faster for many positions."""
    x = (stream + position * _GOLDEN_GAMMA) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK  # `_mix`, inlined for speed
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53
