"""`python -m pipeline cache list | check | clean | why`: lists artifacts, reads them for damage, removes them, and says
why a stage would run.
"""

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline.artifacts import manifest as record
from pipeline.artifacts.build_lock import keys_in_use, registration_lock
from pipeline.artifacts.manifest import Manifest, format_nbytes
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store

_DAY_S = 86400


@dataclass(frozen=True)
class CacheEntry:
    """One artifact: its folder, record, and the keys of what it was built from and of what was built from it."""

    folder: Path
    manifest: Manifest
    built_from: tuple[str, ...]
    used_by: tuple[str, ...]

    def age_s(self, now: datetime) -> float:
        """Seconds since it was built."""
        return (now - datetime.fromisoformat(self.manifest.built)).total_seconds()


def list_entries(store: Store) -> list[CacheEntry]:
    """Every artifact with a readable manifest, by name and then by age, oldest first."""
    found = [(folder, manifest) for folder, manifest in store.manifests() if manifest]
    found.sort(key=lambda pair: (pair[1].name, pair[1].built))
    return [CacheEntry(folder, one, _input_keys(one), _user_keys(one, found)) for folder, one in found]


def _input_keys(manifest: Manifest) -> tuple[str, ...]:
    return tuple(f"{name}-{digest[:12]}" for name, digest in manifest.inputs.items())


def _user_keys(manifest: Manifest, found: Iterable[tuple[Path, Manifest]]) -> tuple[str, ...]:
    return tuple(user.key for _, user in found if manifest.digest in user.inputs.values())


def format_table(store: Store, now: datetime) -> str:
    """Name, digest, size, age, what it was built from and what uses it, and damage that sizes show."""
    rows: list[tuple[str, ...]] = [("NAME", "DIGEST", "SIZE", "AGE", "BUILT FROM", "USED BY", "")]
    rows += [_row(entry, now) for entry in list_entries(store)]
    rows += [(folder.parent.name, folder.name[:12], *"----", "DAMAGED") for folder, one in store.manifests() if not one]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(entry: CacheEntry, now: datetime) -> tuple[str, ...]:
    one = entry.manifest
    problem = record.find_damage(entry.folder, one)
    built_from, used_by = " ".join(entry.built_from) or "-", _count_by_stage(entry.used_by)
    return (one.name, one.digest[:12], format_nbytes(one.nbytes), _format_age(entry.age_s(now)), built_from, used_by,
            f"DAMAGED: {problem}" if problem else "")  # fmt: skip


def select_removable(
    found: Sequence[CacheEntry],
    names: Collection[str],
    keep: Collection[str],
    older_than_days: float | None,
    now: datetime,
) -> list[CacheEntry]:
    """Artifacts that `clean` may remove: with these names or keys (all if none), that old, and not needed for `keep`.

    Raises ValueError for an unknown name in `keep`, which would keep nothing.
    """
    _check_names(keep, {entry.manifest.name for entry in found}, {entry.manifest.key for entry in found})
    needed = _needed_digests(found, keep)
    return [
        entry
        for entry in found
        if (not names or _matches(entry, names))
        and (older_than_days is None or entry.age_s(now) > older_than_days * _DAY_S)
        and entry.manifest.digest not in needed
    ]


def _check_names(names: Iterable[str], stages: Collection[str], keys: Collection[str]) -> None:
    for name in names:
        if name not in stages and name not in keys:
            known = ", ".join(sorted(stages)) or "no artifacts"
            raise ValueError(f"nothing stored is called {name!r}; stored are {known}.")


def _matches(entry: CacheEntry, names: Collection[str]) -> bool:
    return entry.manifest.name in names or entry.manifest.key in names


def _needed_digests(found: Sequence[CacheEntry], names: Collection[str]) -> set[str]:
    inputs = {entry.manifest.digest: set(entry.manifest.inputs.values()) for entry in found}
    reached: set[str] = set()
    ahead = {entry.manifest.digest for entry in found if _matches(entry, names)}
    while ahead:
        reached |= ahead
        ahead = {digest for one in ahead for digest in inputs.get(one, ())} - reached
    return reached


def check(store: Store, names: Collection[str] = ()) -> tuple[list[str], int]:
    """Reads every file of the artifacts with these names or keys (all if none); what was found, and the exit status.

    The status is 1 if one is damaged. Raises ValueError for an unknown name.
    """
    chosen = _choose(store, names)
    damage = {
        key: problem for key, (folder, one) in chosen.items() if (problem := record.find_damage(folder, one, True))
    }
    lines = [f"{key}  DAMAGED: {problem}\n    build it again: {_rebuild(key)}" for key, problem in damage.items()]
    lines += [
        f"{key}  has files without a digest (an older record): their sizes alone are compared"
        for key, (_, one) in chosen.items()
        if one and any(file.sha256 is None for file in one.files.values())
    ]
    return [*lines, f"{len(chosen)} read, {len(damage)} damaged"], int(bool(damage))


def _choose(store: Store, names: Collection[str]) -> dict[str, tuple[Path, Manifest | None]]:
    """The artifacts with these names or keys, all if none, by key."""
    found = {_key(folder): (folder, one) for folder, one in store.manifests()}
    _check_names(names, {folder.parent.name for folder, _ in found.values()}, found)
    return {key: each for key, each in found.items() if not names or key in names or each[0].parent.name in names}


def _rebuild(key: str) -> str:
    """The command, which also builds what was built from it; a record does not know its run's arguments."""
    return f"python -m pipeline ARGUMENTS OF ITS RUN 'force=[{key.rpartition('-')[0]}]'"


def _key(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name[:12]}"


def find_leftovers(store: Store, check_contents: bool = False) -> list[tuple[str, Path]]:
    """Damaged artifacts, by size or with `check_contents` by content too, the saved work of unfinished builds, and what
    an earlier `clean` was stopped in removing.
    """
    damaged = [
        (_key(folder), folder) for folder, one in store.manifests() if record.find_damage(folder, one, check_contents)
    ]
    folders = [
        folder for place in (".work", ".damaged", ".trash") for folder in sorted((store.root / place).glob("[!.]*"))
    ]
    return damaged + [(folder.name, folder) for folder in folders]


def clean(store: Store, folders: Sequence[tuple[str, Path]], delete: bool) -> list[str]:
    """Remove (or only name, unless `delete`) folders of the store with these keys; a line for each, one for the sum.

    Artifacts that are being built, and those that they need, stay. No build starts meanwhile. What another process
    has moved since is left out.
    """
    store.ensure_writable()
    lines, freed_nbytes = [], 0
    with registration_lock(store.locks):
        busy = keys_in_use(store.locks)
        for key, folder in ((key, folder) for key, folder in folders if folder.exists()):
            nbytes = 0 if key in busy else _nbytes(folder)
            freed_nbytes += nbytes
            lines.append(
                f"{format_nbytes(nbytes):>9}  {key}{'  stays: it is being built or needed for a build' * (key in busy)}"
            )
            if delete and key not in busy:
                store.move_to_trash(folder)
    if delete:
        shutil.rmtree(store.root / ".trash", ignore_errors=True)
    return [
        *lines,
        f"{format_nbytes(freed_nbytes):>9}  " + ("freed" if delete else "would be freed; add --yes to do it"),
    ]


def main(argv: Sequence[str], store: Store, plan: Callable[[Sequence[str]], Iterable[Stage]], now: datetime) -> int:
    """Run one command and return its exit code; `plan` makes stages of `why`'s arguments, a run's own overrides."""
    parser = _parser()
    if not argv:
        print(parser.format_help())
        return 0
    asked, rest = parser.parse_known_args(argv)
    if rest and asked.command != "why":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if asked.command == "check":
            lines, status = check(store, asked.names)
        else:
            lines, status = _run_command(asked, rest, store, plan, now), 0
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(lines))
    return status


def _run_command(
    options: argparse.Namespace,
    overrides: Sequence[str],
    store: Store,
    plan: Callable[[Sequence[str]], Iterable[Stage]],
    now: datetime,
) -> list[str]:
    if options.command == "list":
        return [format_table(store, now)]
    if options.command == "why":
        return _explain(overrides, store, plan)
    if not (options.names or options.keep or options.older_than is not None):
        return clean(store, find_leftovers(store, options.check), options.yes)
    if options.check:
        raise ValueError("--check looks for damaged artifacts, and NAME, --keep and --older-than choose others.")
    if options.older_than is not None and not options.older_than >= 0:
        raise ValueError(f"--older-than is {options.older_than:g}; days are wanted, 0 or more.")
    chosen = _choose(store, options.names)
    removable = select_removable(list_entries(store), options.names, options.keep, options.older_than, now)
    folders = [(one.manifest.key, one.folder) for one in removable]
    if options.names and options.older_than is None:  # an artifact without a readable record has no age
        folders += [(key, folder) for key, (folder, manifest) in chosen.items() if manifest is None]
    return clean(store, folders, options.yes)


def _explain(words: Sequence[str], store: Store, plan: Callable[[Sequence[str]], Iterable[Stage]]) -> list[str]:
    """A line for each stage of a run. Words without "=" name the stages to show; default: all."""
    names = {word for word in words if "=" not in word and not word.startswith(("~", "-"))}
    overrides = [word for word in words if word not in names]
    if not overrides:
        example = " ".join(["python -m pipeline cache why", *sorted(names), "+policy=synera hardware=jetson_orin"])
        raise ValueError(f"which run? Give its own arguments: {example}")
    stages = {stage.name: stage for stage in plan(overrides)}
    unknown = sorted(names - set(stages))
    if unknown:
        raise ValueError(f"this run has no stage {unknown[0]!r}; it has {', '.join(stages)}.")
    return [f"{one.key}: {store.explain(one)}" for name, one in stages.items() if not names or name in names]


_EXAMPLES = """examples:
  python -m pipeline cache list                                    all artifacts
  python -m pipeline cache check device_model                      whether its files are as they were written
  python -m pipeline cache why +policy=synera network=lte          why each stage of this run would run
  python -m pipeline cache why thresholds +policy=synera           why one stage would run
  python -m pipeline cache clean serve --older-than 7 --yes        remove served results of more than a week ago
  python -m pipeline cache clean                                   what a crash left, and what is damaged"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m pipeline cache",
        description="Lists what is stored below outputs/artifacts, reads it for damage, removes it, and says why a "
        "stage would run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="artifacts: size, age, what they were built from, what uses them")
    checking = commands.add_parser("check", help="read every file and list what is damaged; exit status 1 if any is")
    checking.add_argument("names", nargs="*", metavar="NAME", help="a stage's name, or NAME-DIGEST as listed")
    cleaning = commands.add_parser("clean", help="remove artifacts; without a choice, damaged and unfinished ones")
    cleaning.add_argument("names", nargs="*", metavar="NAME", help="a stage's name, or NAME-DIGEST as listed")
    cleaning.add_argument("--keep", nargs="+", default=[], metavar="NAME", help="these and all they were built from")
    cleaning.add_argument("--older-than", type=float, metavar="DAYS", help="only what was built longer ago")
    cleaning.add_argument("--check", action="store_true", help="without a choice: read every file, as check does")
    cleaning.add_argument("--yes", action="store_true", help="do it; without this, only say what would be freed")
    commands.add_parser("why", help="why each stage of a run would run; takes the run's own arguments", add_help=False)
    return parser


def _count_by_stage(keys: Sequence[str]) -> str:
    """Users by stage: `device_model, 9 serve`."""
    names = Counter(key.rpartition("-")[0] for key in keys)
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in names.items()) or "-"


def _format_age(seconds: float) -> str:
    for unit, length_s in (("d", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
