"""Where the numbers of jobs come from: what built them, and the sources of the figures that they rest on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts.manifest import read_manifest
from pipeline.report.clock_errors import with_errors
from pipeline.report.comparison import ComparisonRow
from pipeline.report.records import RecordsError, RunMetadata, read_metadata


@dataclass(frozen=True)
class Fact:
    """A text, and the jobs that it holds for; none of them is named for a single run."""

    label: str
    text: str
    jobs: tuple[int, ...] = ()


def versions(rows: Sequence[ComparisonRow]) -> list[Fact]:
    """Revision, packages and core that built each result: those of its artifact, which may be older than the report."""
    return _merged((row, fact) for row in rows for fact in _job_versions(row))


def _job_versions(row: ComparisonRow) -> Iterator[tuple[str, str]]:
    manifest = read_manifest(Path(row.result.artifact)) if row.result.artifact else None
    yield "revision", (manifest.revision if manifest else row.result.revision) or "without revision"
    if manifest:
        yield "built", manifest.built[:10]
        yield from manifest.versions.items()
    else:
        yield "packages", "not known: the artifact is gone"


def sources(rows: Sequence[ComparisonRow]) -> list[Fact]:
    """What each run says of its times, links, radios, prices and packing, and the sources of all figures of its chips
    and architectures.
    """
    return _merged((row, fact) for row in rows for fact in _job_sources(row))


def _job_sources(row: ComparisonRow) -> Iterator[tuple[str, str]]:
    folder = Path(row.result.artifact or "")
    try:
        yield from _metadata_sources(read_metadata(folder))
    except RecordsError:
        yield "records", "none: the job ended with another stage, or they are gone"
    manifest = read_manifest(folder)
    yield from dict.fromkeys(_node_sources(manifest.args, "")) if manifest else ()


def _metadata_sources(meta: RunMetadata) -> Iterator[tuple[str, str]]:
    yield from (("note", caveat) for caveat in meta.caveats)
    for side, timing in meta.timing.items():
        yield f"time of the {side}", with_errors(timing)
    yield from (("link", str(link)) for link in meta.raw.get("links", ()))
    yield from (("radio", radio) for radio in meta.radios)
    yield from ((f"price of {chip}", price) for chip, price in meta.prices.items())
    if meta.packing_factor:
        yield "packing factor", f"{meta.packing_factor.value:g}: {meta.packing_factor.source}"
    yield from (("note", note) for note in meta.notes)


def _node_sources(node: Any, name: str) -> Iterator[tuple[str, str]]:
    """(place, source) of every `source` and of all `sources` below the node; places begin with the nearest name."""
    if isinstance(node, list):
        for one in node:
            yield from _node_sources(one, name)
    if not isinstance(node, Mapping):
        return
    own = str(node.get("name") or name)
    if isinstance(node.get("source"), str) and node["source"]:
        yield own, node["source"]
    if isinstance(node.get("sources"), Mapping):
        yield from ((f"{own} {figure}", str(source)) for figure, source in node["sources"].items() if source)
    for key, one in node.items():
        if key != "sources":
            yield from _node_sources(one, f"{own} {key}".strip())


def _merged(found: Any) -> list[Fact]:
    """One fact for all jobs that share it, in the order of the first of them."""
    jobs: dict[tuple[str, str], list[int]] = {}
    for row, fact in found:
        jobs.setdefault(fact, []).extend([] if row.result.number is None else [row.result.number])
    return [Fact(label, text, tuple(dict.fromkeys(own))) for (label, text), own in jobs.items()]


def format_jobs(jobs: Sequence[int], num_jobs: int) -> str:
    """`all`, or the numbers with runs of them joined: 0 to 3, 7."""
    if len(jobs) >= num_jobs:
        return "all"
    parts: list[list[int]] = []
    for number in sorted(jobs):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 2 else ", ".join(map(str, one)) for one in parts)
