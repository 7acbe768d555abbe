"""Words of a command line, put together: of two that set the same key the later one holds."""

from collections.abc import Iterable, Mapping, Sequence


def key_of(word: str) -> str:
    """The key that a word sets, without Hydra's signs."""
    return word.partition("=")[0].lstrip("+~")


def joined(*parts: Iterable[str]) -> tuple[str, ...]:
    """All words in their order, without those that a later word of the same key replaces. Groups come first: a choice
    of a group would replace the options of an earlier one.
    """
    found: dict[str, str] = {}
    for word in (word for part in parts for word in part):
        found.pop(key_of(word), None)
        found[key_of(word)] = word
    return tuple(sorted(found.values(), key=lambda word: "." in key_of(word)))


def without(words: Iterable[str], keys: Sequence[str]) -> list[str]:
    """The words that set none of these keys, and nothing below one of them."""
    return [word for word in words if not sets_any(word, keys)]


def sets_any(word: str, keys: Sequence[str]) -> bool:
    """True if the word sets one of these keys, or something below one."""
    return any(key_of(word) == key or key_of(word).startswith(f"{key}.") for key in keys)


def kept_by_none(words: Iterable[str], cells: Iterable[Iterable[str]]) -> list[str]:
    """The words that stand in none of the cells, because each cell sets the same keys itself."""
    kept = {word.lstrip("+") for cell in cells for word in cell}
    return [word for word in words if word.lstrip("+") not in kept]


def unused_note(words: Sequence[str], where: str) -> str:
    """What is said of words that no cell keeps; `where` names the options that decide in their place."""
    return f"{', '.join(words)}: of no effect here, since every cell sets the same itself; see {where}"


def check_each_once(name: str, values: Sequence[object]) -> None:
    """Raises ValueError for a value of option `name` that is given twice."""
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise ValueError(f"{name} has {repeated[0]!r} twice, which would be served and counted as two; give it once")


def mixed_networks(networks: Mapping[str, float], fleet: Mapping[str, object], devices: int) -> tuple[str, ...]:
    """The words of a testbed that deals `devices` devices, all of one `fleet`, to networks by their shares.

    Raises ValueError for shares that are not above 0, or a fleet that cannot be written in a word.
    """
    wrong = [f"{name}: {share}" for name, share in networks.items() if not share > 0]
    if wrong:
        raise ValueError(f"networks has the share {wrong[0]}; a share is a number above 0, in any unit")
    nested = [key for key, value in fleet.items() if isinstance(value, Mapping | list)]
    if nested:
        raise ValueError(
            f"networks splits the devices of hardware.device, and its {nested[0]} has options of its own; give it by "
            "a plain name, or write hardware.fleets yourself"
        )
    counts = deal(networks, devices)
    own = {key: value for key, value in fleet.items() if value is not None and key not in ("count", "network")}
    texts = [_node({**own, "count": count, "network": name}) for name, count in counts.items() if count]
    return ("hardware.device=null", f"+hardware.fleets=[{','.join(texts)}]")


def deal(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """`total` devices by shares, the largest remainders rounded up."""
    whole = sum(shares.values())
    exact = {name: total * share / whole for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda one: counts[one] - exact[one])[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _node(values: Mapping[str, object]) -> str:
    return "{" + ",".join(f"{key}:{_text(value)}" for key, value in values.items()) + "}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
