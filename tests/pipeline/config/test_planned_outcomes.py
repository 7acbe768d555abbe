"""A plan refuses drafts that a source of outcomes does not know, before anything is recorded."""

import pytest

from pipeline.api import stages
from pipeline.errors import ConfigError

TREES = ("policy/draft=tree", "policy/verify=tree", "policy/lookahead=tree")
SIMULATED = ("+policy=sled", "model=toy", "workload=smoke", "runtime=simulated")


@pytest.mark.parametrize("outcomes", ["tree_trace", "own_trace", "fitted", "shifted"])
def test_trees_that_are_recorded_or_drawn_are_planned(outcomes: str) -> None:
    assert stages([*SIMULATED, f"runtime/outcomes={outcomes}", *TREES])[-1].name == "serve"


def test_trees_that_a_trace_will_not_have_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"policy sled grows trees of up to 16 nodes, and runtime/outcomes=trace reco"
    ):
        stages([*SIMULATED, *TREES])


@pytest.mark.parametrize("draft", [("policy/draft=lookup",), ("policy/draft=tree_lookup", "policy/verify=tree")])
@pytest.mark.parametrize("outcomes", ["fitted", "shifted", "constant"])
def test_drafts_read_off_the_text_are_refused_where_there_is_none(outcomes: str, draft: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="has no text; choose runtime/outcomes=trace or own_trace"):
        stages([*SIMULATED, f"runtime/outcomes={outcomes}", *draft])
    assert stages([*SIMULATED, *draft])[-1].name == "serve"


def test_an_acceptance_that_is_no_share_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is the share of right drafts, above 0, below 1"):
        stages([*SIMULATED, "runtime/outcomes=shifted", "runtime.outcomes.acceptance=60"])
