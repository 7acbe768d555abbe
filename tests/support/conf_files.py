"""The conf files of chips, architectures, links and testbeds, built by hand: serving is tested without the pipeline."""

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip, PowerMode, SoftwareEfficiency
from serving.hardware.fitted_latencies import FittedLatencies
from serving.hardware.fleet import Fleet, PowerModeSchedule
from serving.hardware.heat import SustainedSpeed
from serving.hardware.latency import LinearLatency
from serving.hardware.price import Price
from serving.hardware.testbed import Testbed, Tier
from serving.network.link import Link
from serving.network.radio import Radio

CONF = Path(__file__).parents[2] / "conf"


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (CONF / folder).glob("[!_]*.yaml"))


def read_yaml(path: Path) -> Any:
    """What a file of plain YAML holds, read by libyaml where it is there: ten times as fast."""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def fields(folder: str, name: str) -> dict[str, Any]:
    node: dict[str, Any] = _with_defaults(_merged(folder, name))
    node.pop("_target_")
    return node


def _with_defaults(node: Any) -> Any:
    """The node with the default in place of each `${oc.select:KEY,DEFAULT}`."""
    if isinstance(node, dict):
        return {key: _with_defaults(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_defaults(value) for value in node]
    found = re.fullmatch(r"\$\{oc\.select:\w+,(.*)\}", node) if isinstance(node, str) else None
    return yaml.safe_load(found[1]) if found else node


def _merged(folder: str, name: str) -> dict[str, Any]:
    """The file over those that its `defaults` name, as Hydra merges them; other groups' defaults are left out."""
    node = read_yaml(CONF / folder / f"{name}.yaml")
    found: dict[str, Any] = {}
    for default in node.pop("defaults", ()):
        if isinstance(default, str) and default != "_self_" and "/" not in default:
            base, _, package = default.partition("@")
            below = _merged(folder, base)
            for key in reversed(package.split(".") if package else ()):
                below = {key: below}
            found = _over(found, below)
    return _over(found, node)


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {
        key: _over(below.get(key, above[key]), above[key]) if key in above else below[key] for key in {**below, **above}
    }


def architecture(name: str) -> Architecture:
    return Architecture(**fields("model/architecture", name))


def chip(name: str) -> Chip:
    """A profile stays the text that names its stage: it is awaited, as while a plan is made."""
    node = fields("hardware/chip", name)
    modes = {key: PowerMode(**mode) for key, mode in node.pop("modes").items()}
    software = {key: SoftwareEfficiency(**each) for key, each in node.pop("software", {}).items()}
    price = node.pop("price", None)
    fitted = {key: fits(**set_) for key, set_ in node.pop("fitted", {}).items()}
    sustained = node.pop("sustained", None)
    return Chip(
        modes=modes, software=software, fitted=fitted, price=Price(**price) if price else None,
        sustained=sustained_speed(**sustained) if sustained else None, **node,
    )  # fmt: skip


def sustained_speed(points: list[list[float]], source: str) -> SustainedSpeed:
    return SustainedSpeed(tuple((load_s, share) for load_s, share in points), source)


def fits(source: str, latencies: dict[str, dict[str, Any]]) -> FittedLatencies:
    return FittedLatencies(source, {name: LinearLatency(**coefficients) for name, coefficients in latencies.items()})


def link(name: str) -> Link:
    return _link(**fields("network", name))


def _link(radio: str | None = None, **node: Any) -> Link:
    return Link(radio=radio_named(radio) if radio else None, **node)


def radio_named(name: str) -> Radio:
    return Radio(**fields("network/radio", name))


def fleet(chip_name: str, **node: Any) -> Fleet:
    if schedule := node.pop("schedule", None):
        node["schedule"] = PowerModeSchedule(**{**schedule, "modes": tuple(schedule["modes"])})
    if network := node.pop("network", None):
        node["network"] = _link(**network)
    return Fleet(chip(chip_name), **node)


def bed(name: str) -> Testbed:
    node = fields("hardware", name)
    cloud, device = (_alone(node.get(side)) for side in ("cloud", "device"))
    fleets = tuple(_alone(each) for each in _selected(node.get("fleets", [])))
    tiers = {name: Tier(_alone(each["nodes"])) for name, each in node.get("tiers", {}).items()}
    return Testbed(cloud, device, fleets, tiers)


def _selected(nodes: list[Any]) -> Any:
    """With the default of each `${oc.select:...}`, since no variant is composed."""
    return OmegaConf.to_container(OmegaConf.create({"nodes": nodes}), resolve=True)["nodes"]  # type: ignore[call-overload,index]


def _alone(node: dict[str, Any] | None) -> Any:
    return fleet(node.pop("chip"), **node) if node else None
