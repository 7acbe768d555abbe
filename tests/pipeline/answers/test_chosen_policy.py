"""A chosen candidate is a policy file that commands find by its name."""

from pathlib import Path

import pytest

from pipeline import api
from pipeline.answers import chosen_policy
from pipeline.answers.candidates import Candidate
from pipeline.config import arguments
from pipeline.errors import ConfigError

CANDIDATE = Candidate(
    "sled", (("policy.draft.k", "7"), ("policy/scheduler", "continuous"), ("+policy.batch_drafts", "true"))
)


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    text = chosen_policy.policy_text("mine", CANDIDATE, ["For 64 devices.", "Chosen."])
    assert chosen_policy.write_policy(tmp_path, "mine", text) == tmp_path / "chosen" / "policy" / "mine.yaml"
    return tmp_path


def test_a_chosen_policy_composes_to_its_choices(outputs: Path) -> None:
    with api.composed("+policy=mine", f"outputs={outputs}") as cfg:
        assert (cfg.policy.name, cfg.policy.draft.k, cfg.policy.batch_drafts) == ("mine", 7, True)
        assert cfg.policy.scheduler._target_.endswith("ContinuousBatch")
        assert cfg.policy.kv_cache._target_.endswith(".NoPrefixCaching")
    assert arguments.find_misspelling(arguments.normalise(["+policy=mine", f"outputs={outputs}"])) is None


def test_the_page_shows_a_chosen_policy_beside_another(outputs: Path) -> None:
    words = ["policy=sled", "+policy@page.policies.mine=mine", f"outputs={outputs}"]
    with api.composed(*words) as cfg:
        assert (cfg.policy.name, cfg.page.policies.mine.name) == ("sled", "mine")


def test_other_commands_have_no_further_search_path(outputs: Path) -> None:
    assert arguments.normalise(["+policy=sled", f"outputs={outputs}"]) == ["policy=sled", f"outputs={outputs}"]
    assert "there is no policy 'mine'" in str(arguments.find_misspelling(arguments.normalise(["+policy=mine"])))


def test_its_first_line_says_what_it_is_for(outputs: Path) -> None:
    words = arguments.normalise(["+policy=mine", f"outputs={outputs}"])
    assert arguments.choices_available(words, "policy")["mine"] == "For 64 devices."


@pytest.mark.parametrize("name", ["wisp", "Mine", "../mine", ""])
def test_a_name_of_the_project_or_of_no_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"choose\.name"):
        chosen_policy.check_name(name)


def test_an_option_outside_the_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"network\.delay_ms is no option of a policy"):
        chosen_policy.policy_text("mine", Candidate("sled", (("network.delay_ms", "4"),)), [])
