"""Time lines of chosen requests as SVG: a lane for each chip, link and queue, and the tokens that the user saw.

They are drawn from the run's event log where it has one (`record.events=true`), else from timeline.parquet, which has
a lane for each kind of work.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.report.figures import LANES
from pipeline.report.records import Records, RequestRecord

EVENTS_FILE = "events.jsonl.gz"
CHOICES = ("median", "slowest", "fastest")
_READER = "serving.log.request_lanes.read_lanes"
_WIDTH, _GUTTER, _RIGHT, _LANE, _BAR, _AXIS = 960, 190, 24, 20, 14, 30
_LEAST_WIDTH = 0.8
"""Of a span in the picture; spans of one kind nearer to each other are drawn as one."""
KIND_COLOURS = {
    **{kind.replace("_", " "): colour for kind, (_, colour) in LANES.items()}, "link": "#7f8b52", "lost": "#a31621",
}  # fmt: skip
"""The colour of each kind of span."""
_DEVICE_COLOUR, _CLOUD_COLOUR = LANES["draft"][1], LANES["verify"][1]


@dataclass(frozen=True)
class Span:
    """A piece of work, a message or a wait of a request, in seconds since it arrived."""

    lane: str
    kind: str
    begin_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class TimeLine:
    """A request, why it was chosen, and what was done for it; `source` says what it was read from."""

    chosen: str
    request: RequestRecord
    spans: tuple[Span, ...]
    source: str


def choose_requests(records: Records, wanted: Sequence[str]) -> dict[str, RequestRecord]:
    """The requests that `wanted` names: median, slowest or fastest end to end among complete ones, or a request's own
    name. A request that is two of them is there once. Raises UserError for a name that no request has.
    """
    by_name = {request.request: request for request in records.requests}
    complete = [request for request in records.requests if request.complete] or list(records.requests)
    ranked = sorted(complete, key=lambda request: (request.end_to_end_s or 0.0, request.request))
    places = {"median": (len(ranked) - 1) // 2, "slowest": -1, "fastest": 0}
    found: dict[str, RequestRecord] = {}
    for name in wanted:
        if name not in places and name not in by_name:
            some = ", ".join(list(by_name)[:3])
            raise UserError(f"requests={name}: no request has this name. There are {', '.join(CHOICES)}, and the "
                            f"names of requests, such as {some}.")  # fmt: skip
        request = ranked[places[name]] if name in places else by_name[name]
        if request not in found.values():
            found[name] = request
    return found


def read_time_lines(artifact: Path, records: Records, wanted: Sequence[str]) -> list[TimeLine]:
    """The time lines of the chosen requests. Raises UserError as `choose_requests` does."""
    chosen = choose_requests(records, wanted)
    logged = _read_log(artifact / EVENTS_FILE, [request.request for request in chosen.values()])
    found = []
    for name, request in chosen.items():
        if request.request in logged:
            spans = tuple(_logged_spans(logged[request.request]))
            found.append(TimeLine(name, request, spans, "event log"))
        else:
            spans = tuple(_recorded_spans(records, request))
            found.append(TimeLine(name, request, spans, "time line of the run; record.events=true shows each node"))
    return found


def _read_log(path: Path, sessions: Sequence[str]) -> Mapping[str, Any]:
    """Empty without a log, and for one of an older version."""
    from pipeline.config.build import load

    if not path.is_file():
        return {}
    read: Callable[[Path, Sequence[str]], Mapping[str, Any]] = load(_READER, "report")
    try:
        return read(path, sessions)
    except ValueError:
        return {}


def _logged_spans(node: Mapping[str, Any]) -> Iterator[Span]:
    since_s = node["arrived_s"]
    for span in node["spans"]:
        lane = f"{span['node']} {span['lane']}"
        yield Span(lane, span["kind"], span["begin_s"] - since_s, span["end_s"] - since_s, span["text"])


def _recorded_spans(records: Records, request: RequestRecord) -> Iterator[Span]:
    since_s = request.arrived_s
    for piece in records.timeline_of(request.request):
        amount = f"{piece.amount} {'bytes' if piece.lane in ('uplink', 'downlink') else 'tokens'}"
        yield Span(
            LANES[piece.lane][0],
            piece.lane.replace("_", " "),
            piece.start_s - since_s,
            piece.end_s - since_s,
            amount,
        )


def svg(line: TimeLine) -> str:
    """The picture; a span's text shows under the pointer."""
    request = line.request
    lanes = _ordered_lanes(line.spans)
    until_s = max([request.end_to_end_s or 0.0, *(span.end_s for span in line.spans), 1e-6])
    scale = (_WIDTH - _GUTTER - _RIGHT) / until_s
    height = _LANE * (len(lanes) + 1) + _AXIS
    parts = [*_axis(until_s, scale, height - _AXIS + 4)]
    for row, lane in enumerate(lanes):
        parts.append(f'<text x="{_GUTTER - 8}" y="{row * _LANE + 15}" text-anchor="end">{escape(lane)}</text>')
        own = [span for span in line.spans if span.lane == lane]
        parts += _bars(own, row * _LANE + (_LANE - _BAR) / 2, scale)
    parts.append(f'<text x="{_GUTTER - 8}" y="{len(lanes) * _LANE + 15}" text-anchor="end">user sees</text>')
    parts += _token_marks(request, len(lanes) * _LANE, scale)
    label = f"Time line of request {request.request}"
    return (
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(label)}" font-size="11">{"".join(parts)}</svg>'
    )


def _ordered_lanes(spans: Sequence[Span]) -> list[str]:
    """Lanes of one node together, nodes in the order in which they first did something."""
    known = [one for one, _ in LANES.values() if any(span.lane == one for span in spans)]
    nodes = list(dict.fromkeys(span.lane.partition(" ")[0] for span in spans))
    others = sorted({span.lane for span in spans} - set(known), key=lambda lane: nodes.index(lane.partition(" ")[0]))
    return [*known, *sorted(others, key=lambda lane: (nodes.index(lane.partition(" ")[0]), _lane_rank(lane)))]


def _lane_rank(lane: str) -> tuple[int, str]:
    kind = lane.partition(" ")[2]
    return {"queue": 0, "chip": 1}.get(kind, 2), kind


def _axis(until_s: float, scale: float, bottom: float) -> Iterator[str]:
    step_s = _step(until_s)
    for number in range(int(until_s / step_s) + 1):
        x = _GUTTER + number * step_s * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.0f}" stroke="#e4e7eb"/>'
        text = _format_s(number * step_s, step_s)
        yield f'<text x="{x:.1f}" y="{bottom + 14:.0f}" text-anchor="middle">{text}</text>'


def _step(until_s: float) -> float:
    """1, 2 or 5 times a power of ten, for five to twelve ticks."""
    power = 10.0 ** floor(log10(until_s))
    return next(step * power for step in (0.1, 0.2, 0.5, 1, 2) if until_s / (step * power) <= 10)


def _format_s(seconds: float, step_s: float) -> str:
    """As many decimals as tell the step's multiples apart."""
    scale, unit = (1000, "ms") if step_s < 0.1 else (1, "s")
    return f"{scale * seconds:.{max(0, -floor(log10(scale * step_s)))}f} {unit}"


def _bars(spans: Sequence[Span], y: float, scale: float) -> Iterator[str]:
    """Spans of one kind that touch in the picture are one."""
    merged: list[tuple[Span, int]] = []
    for span in sorted(spans, key=lambda one: (one.begin_s, one.end_s)):
        last, count = merged[-1] if merged else (None, 0)
        near = last is not None and last.kind == span.kind and (span.begin_s - last.end_s) * scale < 0.2
        if near and last is not None and (span.end_s - span.begin_s) * scale < _LEAST_WIDTH:
            text = f"{count + 1} pieces"
            merged[-1] = (Span(last.lane, last.kind, last.begin_s, max(last.end_s, span.end_s), text), count + 1)
        else:
            merged.append((span, 1))
    for span, _ in merged:
        width = max(_LEAST_WIDTH, (span.end_s - span.begin_s) * scale)
        took = f"{1000 * (span.end_s - span.begin_s):.1f} ms from {1000 * span.begin_s:.1f} ms"
        yield (
            f'<rect x="{_GUTTER + span.begin_s * scale:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_BAR}" '
            f'fill="{KIND_COLOURS.get(span.kind, "#5f6b7a")}"><title>{escape(span.kind)}: {escape(span.text)}, {took}'
            "</title></rect>"
        )


def _token_marks(request: RequestRecord, top: float, scale: float) -> Iterator[str]:
    """A stroke at each moment with tokens, in the cloud's colour if it judged or wrote one of them."""
    moments: dict[float, list[str]] = {}
    for seen_s, origin in zip(request.token_times_s, request.origins, strict=True):
        moments.setdefault(seen_s - request.arrived_s, []).append(origin)
    for seen_s, origins in moments.items():
        colour = _DEVICE_COLOUR if set(origins) <= {"device", "offline"} else _CLOUD_COLOUR
        x = _GUTTER + seen_s * scale
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 3:.0f}" y2="{top + _LANE - 3:.0f}" stroke="{colour}" '
            f'stroke-width="1.6"><title>{len(origins)}: {escape(", ".join(origins))} at {1000 * seen_s:.1f} ms</title>'
            "</line>"
        )
