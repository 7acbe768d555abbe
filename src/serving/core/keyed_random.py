"""Random numbers by name: the same (seed, session, position, purpose) always meets the same luck."""

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
    """A 64-bit stream for one named thing under one seed; equal in every process, unlike `hash(str)`."""
    return _mix((seed * _GOLDEN_GAMMA + crc32(name.encode()) * _NAME_MULTIPLIER + _GOLDEN_GAMMA) & _MASK)


def seed_for(seed: int, name: str) -> int:
    """The seed under which `name` has the luck that a thing without a name has under `seed`; 64 bits with a sign."""
    found = (seed - crc32(name.encode()) * _NAME_MULTIPLIER * pow(_GOLDEN_GAMMA, -1, _MASK + 1)) & _MASK
    return found - (_MASK + 1) if found >> 63 else found


@cache
def _salt(purpose: str) -> int:
    return crc32(purpose.encode()) * 0xA0761D6478BD642F + _GOLDEN_GAMMA


def uniform(stream: int, position: int, purpose: str) -> float:
    """A uniform number in [0, 1) for one purpose at one position of a stream made by `key`."""
    return uniform_at(stream + _salt(purpose), position)


def substream(stream: int, purpose: str) -> int:
    """What `luck_at` needs to find the luck of one purpose at every position of a stream."""
    return (stream + _salt(purpose)) & _MASK


def uniform_at(stream: int, position: int) -> float:
    """`luck` where it is drawn often."""
    x = (stream + position * _GOLDEN_GAMMA) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK  # `_mix`, which is drawn too often for a call of its own
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53
