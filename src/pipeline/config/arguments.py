"""The command line before Hydra reads it: spellings, configuration folders, and early checks."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT_CONF = Path(__file__).resolve().parents[3] / "conf"
WHEEL_CONF = Path(__file__).resolve().parents[1] / "conf"


def conf_dir() -> Path:
    """The project's configuration folder: beside `src` in a checkout, inside the package in a wheel."""
    return CHECKOUT_CONF if CHECKOUT_CONF.is_dir() else WHEEL_CONF


def normalise(argv: Sequence[str]) -> list[str]:
    """Accepts `policy`, `experiment` and `page` with and without a plus, and moves experiments to the front.

    Hydra lets the later of two override files win; the words of a command must win over its experiment.
    """
    found = []
    for word in argv:
        if word.startswith("+policy="):
            word = word[1:]
        elif word.startswith(("experiment=", "page=")):
            word = f"+{word}"
        found.append(word)
    overrides = iter(sorted(filter(_is_override, found), key=lambda word: not word.startswith("+experiment=")))
    return [next(overrides) if _is_override(word) else word for word in found]


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")


def choices_given(argv: Sequence[str], group: str) -> list[str]:
    """The choices of `group` that the command line names; a sweep may name several."""
    for word in argv:
        name, _, value = word.lstrip("+").partition("=")
        if name == group:
            return [choice.strip().strip("'\"") for choice in value.split(",")]
    return []


def config_folders(argv: Sequence[str]) -> Iterator[Path]:
    """The folders that are searched for configuration: the user's, then the project's."""
    words = iter(argv)
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--config-dir", "-cd"):
            yield Path(value or next(words, ""))
        elif option.lstrip("+") == "hydra.searchpath":
            for entry in value.strip("[]").split(","):
                yield Path(entry.strip().removeprefix("file://"))
    yield conf_dir()


def choices_available(argv: Sequence[str], group: str) -> dict[str, str]:
    """The choices of `group`, each with the first comment line of its file.

    The placeholder `unset` is left out, and files that others build on, whose names begin with an underscore.
    """
    found: dict[str, str] = {}
    for folder in config_folders(argv):
        place = folder / group
        for file in sorted(place.rglob("[!_]*.yaml") if group == "experiment" else place.glob("[!_]*.yaml")):
            lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @"))
            found.setdefault(str(file.relative_to(place).with_suffix("")), next(lines, "").lstrip("# "))
    found.pop("unset", None)
    return found


def find_misspelling(argv: Sequence[str]) -> str | None:
    """The error text for a command line without a policy, or with a choice that its group lacks; None if it has
    neither.
    """
    for word in argv:
        group, equals, value = word.lstrip("+").partition("=")
        known = choices_available(argv, group) if equals and "." not in group and "hydra" not in group else {}
        unknown = [name for name in choices_given(argv, group) if _is_literal_name(value) and name not in known]
        if known and unknown:
            plus = "+" if group in ("policy", "experiment", "page") else ""
            return f"there is no {group} {unknown[0]!r}. Choose one with {plus}{group}=NAME:\n{format_choices(known)}"
    if not choices_given(argv, "policy") and not choices_given(argv, "experiment"):
        return f"which policy? Choose one with +policy=NAME:\n{format_choices(choices_available(argv, 'policy'))}"
    return None


def _is_literal_name(value: str) -> bool:
    """True if `value` is one name or several; globs, ranges and null are left to Hydra."""
    return value != "null" and not any(sign in value for sign in "()[]{}*$@")


def find_unwritable_outputs(argv: Sequence[str]) -> str | None:
    """The error text for an `outputs` folder that cannot be written, before Hydra logs there; None if it can."""
    for name in choices_given(argv, "outputs") or ["outputs"]:
        folder = Path(name).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            allowed = os.access(folder, os.W_OK | os.X_OK)
        except OSError as problem:
            return f"cannot write below {folder}: {problem.strerror}. {_UNWRITABLE_HINT}"
        if not allowed:
            return f"cannot write below {folder}: permission denied. {_UNWRITABLE_HINT}"
    return None


_UNWRITABLE_HINT = "Nothing was run. Give this user write permission there, or choose another folder with outputs=DIR."


def format_choices(known: dict[str, str]) -> str:
    width = max(map(len, known), default=0)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in known.items())
