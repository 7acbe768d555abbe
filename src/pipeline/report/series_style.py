"""The look of a figure's series: a colour for each policy, and markers and lines, so that no two are alike."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

COLOURS = (
    "#3366cc", "#d9572b", "#2f9e6e", "#8b5cc7", "#c79a1b", "#5f6b7a", "#c2417c", "#1fa3b8", "#7a4a2a", "#8fb339",
    "#1b2a6b", "#e58fb1", "#7fb2f0", "#0f5c45", "#a31621", "#e8a46b", "#4b2e83", "#8a8418", "#a8a8a8", "#000000",
    "#00c2a8", "#c9a6f2", "#5a1f3d", "#b8d8a0",
)  # fmt: skip
POLICIES = (
    "synera", "cloud_centric", "edge_centric", "hat", "wisp", "u_shape", "citer", "hyperion", "sled", "u_medusa",
    "hybrid", "u_sarathi", "edgefm", "co_llm", "gpipe", "heft", "wisp_deadline", "cloud_speculative",
    "specedge", "delay_adaptive", "tandem", "tandem_device",
)  # fmt: skip
"""The policies of conf/policy, each with the colour at its place."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
_LINES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("-", "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and line of a series, as matplotlib takes them."""

    colour: str
    marker: str
    line: str | tuple[float, tuple[float, ...]]


def series_styles(policies: Mapping[str, str], colours: Sequence[str] = COLOURS) -> dict[str, SeriesStyle]:
    """The style of each series, by its name; `policies` has the policy of each, "" for a series of several or none.

    Series of one policy have its colour. Where all series have one policy, or one has none, each has the colour of its
    own name. No two styles are alike in a figure of up to 1,200 series with the 24 colours of a screen.
    """
    by_policy = all(policies.values()) and len(set(policies.values())) > 1
    keys = {name: policy if by_policy else name for name, policy in policies.items()}
    places = _colour_places(set(keys.values()), len(colours))
    used: Counter[int] = Counter()
    styles = {}
    for name, key in keys.items():
        place = places[key]
        marker, line = _MARKERS[(place + used[place]) % len(_MARKERS)], _LINES[used[place] % len(_LINES)]
        styles[name] = SeriesStyle(colours[place], marker, line)
        used[place] += 1
    return styles


def _colour_places(names: set[str], num_colours: int) -> dict[str, int]:
    """The places of known policies, and by hash those of other names: each the next free one, as long as one is."""
    starts = {name: POLICIES.index(name) for name in POLICIES if name in names}
    starts |= {name: crc32(name.encode()) for name in sorted(names - starts.keys())}
    places: dict[str, int] = {}
    for name, start in starts.items():
        wanted = [(start + step) % num_colours for step in range(num_colours)]
        times = Counter(places.values())
        places[name] = min(wanted, key=times.__getitem__)
    return places
