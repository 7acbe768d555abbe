"""Prints which core is in use, then the digests of each policy's and testbed's stages, or why it has none."""

from native import loader
from pipeline import api
from pipeline.errors import ConfigError
from tests.support.conf_files import CONF

DIVIDED = ("gpipe", "heft", "hyperion")
"""Policies that need a testbed with tiers."""


def names(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("[a-z]*.yaml") if file.stem != "unset")


print(loader.describe())
for words in (
    *((f"+policy={name}", f"hardware={'hyperion' if name in DIVIDED else 'jetson_orin'}") for name in names("policy")),
    *((f"+policy={policy}", f"hardware={name}") for name in names("hardware") for policy in ("sled", "hyperion")),
    ("+experiment=wisp/embedded_pair",),
    ("+experiment=wisp/table3",),
):  # fmt: skip
    try:
        found = [f"{stage.name} {stage.digest}" for stage in api.stages(words)]
    except ConfigError as problem:
        found = [str(problem)]
    print(*words, *found)
