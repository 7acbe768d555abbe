"""What Hydra says of a command line, in words that say what to write."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

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
