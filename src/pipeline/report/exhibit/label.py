"""Templates over what was chosen: `budget {policy.offload.budget}`."""

import re
from collections.abc import Mapping

_FIELD = re.compile(r"\{([^{}]+)\}")


def fields(*templates: str) -> list[str]:
    """The names in braces, each once."""
    return list(dict.fromkeys(name for template in templates for name in _FIELD.findall(template)))


def fill(template: str, choices: Mapping[str, str]) -> str:
    """The template with every name replaced by what was chosen; a dash where that is not known."""
    return _FIELD.sub(lambda found: choices.get(found[1], "-"), template)


def chosen(override: str) -> tuple[str, str]:
    """The name and value of `+name=value`, without the marks that only Hydra needs."""
    name, _, value = override.lstrip("+~").partition("=")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return name, value[1:-1] if quoted else value
