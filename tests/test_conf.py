"""Every file of conf/ composes, says what it is, and is reachable."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.config.compose import prepare_hydra
from pipeline.config.merged_groups import keep_merged_groups
from pipeline.config.resolve import resolve
from serving.transport.limits import Limits
from serving.transport.security import Security
from tests.support.conf_files import read_yaml

CONF = Path(__file__).parents[1] / "conf"
SLOTS = [
    "draft",
    "offload",
    "lookahead",
    "early_exit",
    "verify",
    "prefill",
    "payload",
    "kv_cache",
    "scheduler",
    "placement",
    "dispatch",
    "link_loss",
]
POLICIES = sorted(path.stem for path in (CONF / "policy").glob("*.yaml") if path.stem != "unset")
FOLDERS = sorted({path.parent.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")} - {"."})
OVERRIDES = ("slo", "draws", *(name for name in FOLDERS if name.startswith("variant/")))
"""Groups of overrides, added with a plus: what experiments vary together."""
_APART = (
    "experiment", "hydra", "hardware/chip", "model/architecture", "model/drafter", "runtime/outcomes",
    "policy/artifacts", "page", "policy/placement/partition", "network/radio", "hardware/api",
    "hardware/battery", "workload/sharing", *OVERRIDES,
)  # fmt: skip
GROUPS = [name for name in FOLDERS if not name.startswith(_APART)]
"""Experiments have tests of their own; chips, architectures and radios are named in nodes; outcomes are one runtime's,
policies beside each other the page's, partitions come with placements, artifacts with the slots that need them, and
what prompts share is a matter of some outcomes.
"""


PAGES = sorted(page for page in (CONF.parent / "docs").glob("*.md") if page.stem not in ("extending", "renamed"))
"""docs/extending.md shows how choices are added, docs/renamed.md what they were called."""


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml") if path.stem != "unset")


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    prepare_hydra()
    keep_merged_groups()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def defaults_of(policy: str) -> dict[str, str]:
    node = read_yaml(CONF / "policy" / f"{policy}.yaml")
    return {slot: choice for entry in node["defaults"] if isinstance(entry, dict) for slot, choice in entry.items()}


def composed(*overrides: str) -> dict[str, Any]:
    named = any(word.startswith("policy=") for word in overrides)
    return resolve(compose("config", list(overrides) if named else ["policy=synera", *overrides]))


@pytest.mark.parametrize("turn", range(max(len(choices(group)) for group in GROUPS)))
def test_every_choice_of_every_group_composes(turn: int) -> None:
    """One of each group at a time: what goes together is the policy's matter, not the composition's."""
    words = [f"{group}={names[turn % len(names)]}" for group in GROUPS if (names := choices(group))]
    assert composed(*words)["stages"]["serve"]["setup"]["policy"]


OVERRIDE_FILES = [(group, name) for group in OVERRIDES for name in choices(group)]


def read(group: str, name: str) -> dict[str, Any]:
    return read_yaml(CONF / group / f"{name}.yaml") or {}


def chosen(node: dict[str, Any]) -> dict[str, str]:
    """Group -> choice, of a file's defaults."""
    entries = [
        entry if isinstance(entry, dict) else {entry: ""} for entry in node.get("defaults", ()) if entry != "_self_"
    ]
    return {key.removeprefix("override ").strip("/"): choice for entry in entries for key, choice in entry.items()}


def only_chooses(node: dict[str, Any]) -> bool:
    """True if a file replaces choices of groups and does nothing else."""
    keys = [key for entry in node.get("defaults", ()) if entry != "_self_" for key in entry]
    return not node.keys() - {"defaults"} and all(key.startswith("override /") and "@" not in key for key in keys)


def written_places(node: Any, path: str = "") -> set[str]:
    """The groups and options that a file sets, as paths."""
    if not isinstance(node, dict) or not node:
        return {path}
    own = {f"/{group}" for group in chosen(node)} if not path else set()
    return own.union(*(written_places(node[key], f"{path}/{key}") for key in node if path or key != "defaults"))


def meet(some: set[str], others: set[str]) -> bool:
    """True if a path of the one is, or lies below, a path of the other."""
    return any(f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/") for a in some for b in others)


def composed_together() -> list[dict[str, str]]:
    """Group -> choice, of those whose files set different places."""
    turns: list[tuple[dict[str, str], set[str]]] = []
    for group, name in OVERRIDE_FILES:
        node = read(group, name)
        if only_chooses(node):
            continue
        places = written_places(node)
        for words, taken in turns:
            if group not in words and not meet(places, taken):
                words[group] = name
                taken |= places
                break
        else:
            turns.append(({group: name}, places))
    return [words for words, _ in turns]


def test_every_group_of_overrides_says_what_it_is_and_chooses_what_there_is() -> None:
    """What goes together is the policy's matter, so that files which only choose need no composition."""
    wrong = []
    for group, name in OVERRIDE_FILES:
        first, second = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[:2]
        if first != "# @package _global_" or not second.startswith("# "):
            wrong.append(f"{group}/{name}.yaml begins with {first!r}, {second!r}")
        node = read(group, name)
        for other, choice in chosen(node).items() if only_chooses(node) else ():
            if other not in {"policy", *GROUPS, "runtime/outcomes"} or choice not in choices(other):
                wrong.append(f"{group}/{name}.yaml chooses {other}={choice}, which is not there")
    assert not wrong


TURNS = composed_together()


@pytest.mark.parametrize("turn", range(len(TURNS)))
def test_every_group_of_overrides_composes(turn: int) -> None:
    """Those at a time that set different places."""
    assert composed(*(f"+{group}={name}" for group, name in TURNS[turn].items()))["stages"]["serve"]


@pytest.mark.parametrize("name", choices("page"))
def test_every_choice_of_policies_beside_each_other_composes(name: str) -> None:
    data = composed(f"+page={name}")
    beside = {key: node["name"] for key, node in data["page"]["policies"].items()}
    assert all(key == policy for key, policy in beside.items())
    assert (data["stages"]["page"]["config"]["other_policies"] or {}).keys() == beside.keys()


@pytest.mark.parametrize("name", choices("runtime/outcomes"))
def test_every_source_of_outcomes_composes(name: str) -> None:
    data = composed("runtime=simulated", f"runtime/outcomes={name}")
    assert data["stages"]["serve"]["runtime"]["outcomes"]["_target_"].startswith("serving.outcomes.")


@pytest.mark.parametrize("name", choices("workload/sharing"))
def test_every_way_of_sharing_prompts_composes(name: str) -> None:
    words = ("runtime=simulated", "runtime/outcomes=fitted", "policy=cloud_centric", "policy/kv_cache=shared")
    data = composed(*words, f"+workload/sharing={name}")
    assert data["stages"]["serve"]["setup"]["workload"]["sharing"]["_target_"].endswith("PromptSharing")


def test_the_embedded_pairs_share_a_cloud_model_and_differ_in_their_device_models() -> None:
    family = [composed(f"model={name}")["stages"] for name in ("tiny_160m", "tiny", "tiny_7b")]
    for shared in ("corpus", "cloud_model"):
        assert all(stages[shared] == family[1][shared] for stages in family)
    hidden = [stages["device_model"]["architecture"]["hidden_size"] for stages in family]
    assert hidden == sorted({*hidden})
    assert hidden[-1] < family[0]["cloud_model"]["architecture"]["hidden_size"]


@pytest.mark.parametrize(
    ("words", "k"),
    [((), 10.0), (("policy.offload.k=20",), 20), (("policy/offload=confidence", "policy.offload.k=20"), 20),
     (("policy=edgefm",), 10.0), (("policy=sled", "policy/lookahead=synera"), 10.0)],
)  # fmt: skip
def test_thresholds_are_profiled_with_the_steepness_that_is_served(words: tuple[str, ...], k: float) -> None:
    assert composed(*words)["stages"]["thresholds"]["k"] == k


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_names_every_slot(name: str) -> None:
    assert [slot for slot in defaults_of(name) if not slot.startswith("/")] == SLOTS
    assert composed(f"policy={name}")["policy"]["name"] == name


def test_every_slot_is_a_group() -> None:
    assert sorted(path.name for path in (CONF / "policy").iterdir() if path.is_dir()) == sorted((*SLOTS, "artifacts"))


def test_every_slot_choice_is_used_by_a_policy_or_says_what_it_is_for() -> None:
    used = {(slot, choice) for name in POLICIES for slot, choice in defaults_of(name).items()}
    spare = {(slot, choice) for slot in SLOTS for choice in choices(f"policy/{slot}")} - used
    for slot, choice in sorted(spare):
        first = (CONF / "policy" / slot / f"{choice}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        assert len(first.split()) > 3, f"policy/{slot}={choice} is used by no policy and does not say what it is for"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_choices_of_slots_that_exist(page: Path) -> None:
    """Both where one stands alone, `policy/lookahead=hat`, and in a list behind it: `hat`, `none`."""
    text = page.read_text(encoding="utf-8")
    for slot, first, more in re.findall(r"policy/(\w+)=(\w+)`?((?:(?:, | or | and )`\w+`)*)", text):
        for name in (first, *re.findall(r"`(\w+)`", more)):
            assert name in choices(f"policy/{slot}"), f"policy/{slot}={name}"


@pytest.mark.parametrize(
    "group",
    [
        "policy",
        "page",
        "network",
        "hardware",
        "workload",
        "model",
        "runtime",
        "trainer",
        *(f"policy/{s}" for s in SLOTS),
    ],
)
def test_every_choice_begins_with_a_line_that_says_what_it_is(group: str) -> None:
    for name in choices(group):
        first = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith("# "), f"{group}/{name}.yaml"
        assert len(first) < 140, f"{group}/{name}.yaml"


def test_every_library_is_a_group_of_nodes_of_its_class() -> None:
    libraries = OmegaConf.to_container(compose("config", ["policy=synera"]).named_configs)
    assert isinstance(libraries, dict)
    for target, group in libraries.items():
        for name in choices(str(group)):
            node = read_yaml(CONF / str(group) / f"{name}.yaml")
            assert node["_target_"] == target, f"{group}/{name}.yaml"


@pytest.mark.parametrize("section", ["runtime", "service"])
def test_limits_and_security_are_written_out_as_they_are_by_default(section: str) -> None:
    node = composed("runtime=grpc")[section]
    for name, default in (("limits", Limits()), ("security", Security())):
        written = {key: value for key, value in node[name].items() if key != "_target_"}
        assert written
        assert written == {key: getattr(default, key) for key in written}
