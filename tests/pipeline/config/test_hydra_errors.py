"""What Hydra says of a command line, in words that say what to write."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.hydra_errors import as_config_errors
from pipeline.errors import ConfigError


@pytest.mark.parametrize("path", ["with blanks/q ä.jsonl", "Größe/q.jsonl", "a(b/q.jsonl"])
def test_a_value_that_wants_quotes_is_shown_with_them(path: str) -> None:
    parser = OverridesParser.create()
    with pytest.raises(ConfigError, match=r"is not read: .* has quotes of its own") as refused, as_config_errors():
        parser.parse_overrides([f"workload.path={path}"])
    assert str(refused.value).endswith(f"Write \"workload.path='{path}'\".")
    assert parser.parse_override(f"workload.path='{path}'").value() == path


@pytest.mark.parametrize("word", ["a='b", "a"])
def test_what_quotes_would_not_mend_is_said_as_hydra_does(word: str) -> None:
    with pytest.raises(ConfigError) as refused, as_config_errors():
        OverridesParser.create().parse_overrides([word])
    assert "has quotes of its own" not in str(refused.value)


def test_what_a_class_says_of_its_option_stands_without_hydras_words() -> None:
    node = {"_target_": "pipeline.report.mlflow_store.Tracking", "uri": "nonsense", "outputs": "outputs"}
    with pytest.raises(ConfigError, match=r"^tracking.uri is 'nonsense'; allowed are"), as_config_errors():
        instantiate(node)


def merge_a_list_over_a_group() -> None:
    try:
        OmegaConf.update(OmegaConf.create({"policies": {"a": 1}}), "policies", ["a"], merge=True)
    except OmegaConfBaseException as problem:
        raise ConfigCompositionException("Error merging override choose.policies=[a]") from problem


def test_a_list_for_a_group_of_options_is_refused_as_what_it_is() -> None:
    said = r"^choose.policies=\[a\] is a list; .* group of options"
    with pytest.raises(ConfigError, match=said), as_config_errors():
        merge_a_list_over_a_group()
