"""Overrides beside what a multirun sweeps: `-m +policy=synera,sled policy/lookahead=none`.

Hydra composes a multirun once without what is swept, and then each job with it. A fixed override of a swept group, such
as one slot of all policies, has no meaning in the first composition. As a sweep of one value it belongs to the jobs.

An override replaces what an experiment sweeps only where both spell the key alike: with `+`, or without.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.arguments import choices_given, config_folders
from pipeline.config.collector import resume_collector
from pipeline.config.sources import read_file
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_TOLD_EVERY = 50
"""Jobs of a sweep between two lines about its composition, which takes up to a quarter of a second a job."""
ROOTS = frozenset({"model", "policy", "hardware", "network", "workload", "runtime"})
"""Groups that a variant may choose: a sweep over variants may sweep all of them."""


def defer_to_jobs(argv: Sequence[str]) -> list[str]:
    """The command line, with the fixed overrides of swept groups as sweeps of one value.

    A line that Hydra cannot parse is returned as it is: Hydra says what is wrong with it.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    experiments = list(_experiment_nodes(argv))
    if not {"-m", "--multirun"} & set(argv) and _mode(argv, experiments) != "MULTIRUN":
        return list(argv)
    params = [key for node in experiments for key in _group(_group(node, "sweeper"), "params")]
    argv = [_spelled_like(params, word) for word in argv]
    words = [word for word in argv if "=" in word and not word.startswith("-")]
    try:
        parsed = dict(zip(words, OverridesParser.create().parse_overrides(words), strict=True))
    except HydraException:
        return list(argv)
    swept = {root for one in parsed.values() if one.is_sweep_override() for root in _chosen_roots(one.key_or_group)}
    swept |= {root for key in params for root in _chosen_roots(key)}
    return [_as_sweep(word) if word in parsed and _belongs_to(parsed[word], swept) else word for word in argv]


def is_one_job(argv: Sequence[str]) -> bool:
    """True if the command cannot be a multirun: an experiment, an option or an override of `hydra` may choose one."""
    return not any(word.startswith("-") or "experiment=" in word or "hydra" in word for word in argv)


@contextmanager
def composed_once(argv: Sequence[str]) -> Iterator[None]:
    """Spares Hydra the composition that finds `hydra.mode` alone, where the command cannot choose a multirun."""
    from hydra._internal.hydra import Hydra  # Hydra has no public place for it
    from hydra.types import RunMode

    if not is_one_job(argv):
        with _jobs_composed_once():
            yield
        return
    found = Hydra.get_mode
    Hydra.get_mode = lambda *_args, **_options: RunMode.RUN  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = found  # type: ignore[method-assign]


@contextmanager
def _jobs_composed_once() -> Iterator[None]:
    """Hydra composes all jobs of a sweep to find their mistakes, and each again when it starts; here once.

    The workers of a parallel launcher compose their own.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from pipeline.config.merged_groups import keep_merged_groups

    keep_merged_groups()
    compose = ConfigLoaderImpl.load_sweep_config
    kept: dict[tuple[str, ...], DictConfig] = {}

    def compose_or_take(
        loader: ConfigLoaderImpl, master_config: "DictConfig", sweep_overrides: list[str]
    ) -> "DictConfig":
        resume_collector()  # each composition leaves a few MB of cycles
        key = tuple(sweep_overrides)
        if key in kept:
            return kept.pop(key)
        kept[key] = compose(loader, master_config, sweep_overrides)
        if len(kept) % _TOLD_EVERY == 0:
            print(f"{len(kept)} jobs composed", file=sys.stderr, flush=True)
        return kept[key]

    ConfigLoaderImpl.load_sweep_config = compose_or_take  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_sweep_config = compose  # type: ignore[method-assign]


def _spelled_like(params: Sequence[str], word: str) -> str:
    """The override with the `+` of the param that it replaces, or without one where that has none."""
    key, equals, value = word.partition("=")
    alike = [param for param in params if param.lstrip("+") == key.lstrip("+")]
    return f"{alike[0]}={value}" if equals and alike and key not in alike else word


def _chosen_roots(key: str) -> frozenset[str]:
    """The groups that a swept key may choose."""
    root, _, _ = key.lstrip("+").partition("/")
    return frozenset() if "." in root else frozenset({root}) & ROOTS or (ROOTS if root == "variant" else frozenset())


def _belongs_to(override: "Override", swept: set[str]) -> bool:
    key = override.key_or_group
    root = key.replace("/", ".").partition(".")[0]
    return root != key and root in swept and not override.is_sweep_override() and not override.is_delete()


def _as_sweep(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}=choice({value})" if value else word


def _experiment_nodes(argv: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """What the named experiments say of `hydra`, each followed by the files that it includes from its folder."""
    for name in choices_given(argv, "experiment"):
        files = (folder / "experiment" / f"{name}.yaml" for folder in config_folders(argv))
        yield from _nodes(next(filter(Path.is_file, files), None))


def _mode(argv: Sequence[str], experiments: Sequence[Mapping[str, Any]]) -> str | None:
    """`hydra.mode` of the command line, else that of the experiments."""
    given = [word.partition("=")[2] for word in argv if word.startswith("hydra.mode=")]
    return next(iter(given), next((str(node["mode"]) for node in experiments if "mode" in node), None))


def _nodes(file: Path | None) -> Iterator[Mapping[str, Any]]:
    """None of a file that is no YAML: Hydra says what is wrong with it."""
    if file is None or not file.is_file():
        return
    try:
        node = read_file(file)
    except (ConfigError, TypeError):
        return
    yield _group(node, "hydra")
    for entry in node.get("defaults") or ():
        if isinstance(entry, str) and entry != "_self_":
            yield from _nodes(file.parent / f"{entry}.yaml")


def _group(node: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = node.get(key)
    return found if isinstance(found, Mapping) else {}
