"""A slot's choice brings its stages into any policy's plan."""

from typing import Any

import pytest

from pipeline import api

TOY = ("model=toy", "workload=smoke")
THRESHOLDS = "thresholds"


def stages(*words: str) -> dict[str, Any]:
    return {stage.name: stage for stage in api.stages([*words, *TOY])}


NEEDED = {
    "+policy=sled policy/offload=synera": True,
    "+policy=sled policy/offload=confidence": True,
    "+policy=sled policy/offload=edgefm": True,
    "+policy=sled policy/offload=random": False,
    "+policy=sled policy/lookahead=synera": True,
    "+policy=sled policy/lookahead=synera policy/offload=synera": True,
    "+policy=sled policy/payload=full_distribution": False,
    "+policy=edge_centric policy/early_exit=layer_wise": False,
    "+policy=synera policy/lookahead=none": True,
    "+policy=synera policy/lookahead=none policy/offload=always": False,
    "+policy=hybrid": True,
    "+policy=edgefm": True,
}


@pytest.mark.parametrize("words", NEEDED)
def test_thresholds_are_profiled_if_and_only_if_a_slot_reads_them(words: str) -> None:
    planned = stages(*words.split())
    assert list(planned)[-1] == "serve"
    assert (THRESHOLDS in planned) is NEEDED[words]
    assert (THRESHOLDS in planned["serve"].inputs) is NEEDED[words]


def test_thresholds_are_profiled_with_the_policys_own_draft() -> None:
    """The same artifact serves every selection and budget; another draft has one of its own."""
    words = ("policy/lookahead=synera", "policy/offload=importance")

    def digest(*more: str) -> str:
        return str(stages("+policy=sled", *more)[THRESHOLDS].digest)

    assert digest(*words) == digest("policy/offload=confidence") == digest(*words, "policy.offload.budget=0.4")
    assert digest(*words) != digest(*words, "policy.draft.k=5")


def test_thresholds_are_profiled_with_the_layers_that_are_skipped() -> None:
    words = ("+policy=sled", "policy/offload=synera")
    digests = {
        name: stages(*words, *more)[THRESHOLDS].digest
        for name, more in {
            "none": (),
            "layers": ("policy/early_exit=layer_wise",),
            "surer": ("policy/early_exit=layer_wise", "policy.early_exit.margin=0.9"),
            "once": ("policy/early_exit=layer_wise", "policy.early_exit.max_checks=1"),
        }.items()
    }
    assert len(set(digests.values())) == 4


def test_a_trace_depends_on_scorers_of_hidden_states_and_on_no_other() -> None:
    """Scores of the logits are recorded anyway: policies with and without a predictor of these share a trace."""
    traced = ("runtime=simulated", "runtime/outcomes=trace", "policy/kv_cache=reuse")
    sled, wisp, routed = (stages(f"+policy={name}", *traced)["record_outcomes"] for name in ("sled", "wisp", "citer"))
    assert sled.digest == wisp.digest
    assert sled.args["scorers"] == []
    (scorer,) = routed.args["scorers"]
    assert scorer == {"_target_": "serving.learned.router.load", "path": {"_stage_": "router_3"}}
    assert "router_3" in routed.inputs
