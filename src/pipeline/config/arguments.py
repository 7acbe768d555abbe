"""The command line before Hydra reads it: spellings, configuration folders, and early checks."""

import os
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

CHECKOUT_CONF = Path(__file__).resolve().parents[3] / "conf"
WHEEL_CONF = Path(__file__).resolve().parents[1] / "conf"


def conf_dir() -> Path:
    """The project's configuration folder: beside `src` in a checkout, inside the package in a wheel.

    A wheel's own is looked for first: beside the folder that a wheel was installed in, a user may have a conf/, too.
    """
    return WHEEL_CONF if WHEEL_CONF.is_dir() else CHECKOUT_CONF


def normalise(argv: Sequence[str]) -> list[str]:
    """Overrides, experiments first, then options; `policy`, `experiment` and `page` with and without a plus.

    Hydra's parser wants all overrides in one place, and lets the later of two override files win: the words of a
    command must win over its experiment.
    """
    overrides: list[str] = []
    options: list[str] = []
    option = ""
    for word in argv:
        if word.startswith("-") or option in _OPTIONS_WITH_VALUE or (option in ("--info", "-i") and "=" not in word):
            options.append(word)
            option = word
        else:
            overrides.append(_with_hydras_plus(word))
            option = ""
    overrides.sort(key=lambda word: not word.startswith("+experiment="))
    return [*overrides, *_chosen_searchpath(overrides), *options]


def chosen_folder(outputs: Path) -> Path:
    """The folder of configuration below `outputs` with the policies that searches chose."""
    return outputs / "chosen"


def _chosen_searchpath(overrides: Sequence[str]) -> list[str]:
    """The word that lets Hydra find a chosen policy; none where the command names none, or has a search path."""
    folder = chosen_folder(Path((choices_given(overrides, "outputs") or ["outputs"])[0]).absolute())
    keys = [word.lstrip("+").partition("=")[0] for word in overrides]
    names = [name for key in keys if key.partition("@")[0] == "policy" for name in choices_given(overrides, key)]
    named = any((folder / "policy" / f"{name}.yaml").is_file() for name in names)
    has_path = any(word.lstrip("+").startswith("hydra.searchpath=") for word in overrides)
    return [f"hydra.searchpath=['file://{folder}']"] if named and not has_path else []


_FOLDER_OPTIONS = ("--config-dir", "-cd")
_OPTIONS_WITH_VALUE = frozenset(
    {*_FOLDER_OPTIONS, "--config-name", "-cn", "--config-path", "-cp", "--cfg", "-c", "--package", "-p",
     "--experimental-rerun"}
)  # fmt: skip


def _with_hydras_plus(word: str) -> str:
    """`policy` replaces a default of conf/config.yaml; `experiment` and `page` are added to them."""
    if word.startswith("+policy="):
        return word[1:]
    return f"+{word}" if word.startswith(("experiment=", "page=")) else word


def choices_given(argv: Sequence[str], group: str) -> list[str]:
    """The choices of `group` that the command line names; a sweep may name several. Of two words the last counts."""
    for word in reversed(argv):
        name, _, value = word.lstrip("+").partition("=")
        if name == group:
            return [choice.strip().strip("'\"") for choice in ([value] if _is_quoted(value) else value.split(","))]
    return []


def _is_quoted(value: str) -> bool:
    """True for one text in quotes, which may have commas."""
    return len(value) > 1 and value[0] in "'\"" and value.find(value[0], 1) == len(value) - 1


def split_options(argv: Sequence[str], names: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a command, and the values of its options NAME=VALUE: a file may have an equals sign in its name."""
    is_option = {word: "=" in word and word.partition("=")[0] in names for word in argv}
    options = (word.split("=", 1) for word in argv if is_option[word])
    return [word for word in argv if not is_option[word]], dict(options)


def config_folders(argv: Sequence[str]) -> Iterator[Path]:
    """The folders that are searched for configuration: the user's, then the project's."""
    words = iter(argv)
    for word in words:
        option, _, value = word.partition("=")
        if option in _FOLDER_OPTIONS:
            yield Path(value or next(words, ""))
        elif option.lstrip("+") == "hydra.searchpath":
            for entry in value.strip("[]").split(","):
                yield Path(entry.strip(" '\"").removeprefix("file://"))
    yield conf_dir()


def choices_available(argv: Sequence[str], group: str) -> dict[str, str]:
    """The choices of `group`, each with the first comment line of its file.

    The placeholder `unset` is left out, and files that others build on, whose names begin with an underscore.
    """
    found: dict[str, str] = {}
    for folder in config_folders(argv):
        place = folder / group
        for file in sorted(place.rglob("[!_]*.yaml") if group == "experiment" else place.glob("[!_]*.yaml")):
            lines = (line for line in file.read_text("utf-8", "replace").splitlines() if not line.startswith("# @"))
            found.setdefault(str(file.relative_to(place).with_suffix("")), next(lines, "").lstrip("# "))
    found.pop("unset", None)
    return found


def leading_folders(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options `--config-dir` in front of all other words, which may be a command's; and the other words."""
    end = 0
    while end < len(argv) and argv[end].partition("=")[0] in _FOLDER_OPTIONS:
        end += 1 if "=" in argv[end] else 2
    end = end if end <= len(argv) else 0  # the last has no value
    return list(argv[:end]), list(argv[end:])


def find_missing_folder(argv: Sequence[str]) -> str | None:
    """The error text for a configuration folder that is not there; None if all are."""
    for folder in config_folders(argv):
        if not str(folder).startswith("pkg:") and not folder.is_dir():
            return (
                f"there is no configuration folder {folder.absolute()}. Name one that holds groups as conf/ does, such "
                "as policy/NAME.yaml."
            )
    return None


ADDED_POLICIES = "leaderboard.add"


def find_misspelling(argv: Sequence[str]) -> str | None:
    """The error text for a command line without a policy or with two words for it, or with a choice that its group
    lacks; None if it has none of these.
    """
    for word in argv:
        group, equals, value = word.lstrip("+").partition("=")
        known = choices_available(argv, group) if equals and "." not in group and "hydra" not in group else {}
        literal = _is_literal_name(value) or value == "null"  # of which Hydra tells in a traceback
        unknown = [name for name in choices_given(argv, group) if literal and name not in known]
        if known and unknown:
            plus = "+" if group in ("policy", "experiment", "page") else ""
            return _no_choice(group, unknown[0], known, f"{plus}{group}=NAME")
    policies = choices_available(argv, "policy")
    for name in choices_given(argv, ADDED_POLICIES):
        if _is_literal_name(bare := name.strip("[] '\"")) and bare not in policies:
            return _no_choice("policy", bare, policies, f"{ADDED_POLICIES}=[NAME]")
    named = [word for word in argv if word.lstrip("+").startswith("policy=")]
    if len(named) > 1 and not any("," in word for word in named):  # a word may narrow what a sweep before it named
        both = ",".join(word.partition("=")[2] for word in named)
        return (
            f"{' and '.join(named)} both choose the policy, and a run has one. Name one of them, or compare them: "
            f"-m policy={both}"
        )
    if not choices_given(argv, "policy") and not choices_given(argv, "experiment"):
        return f"which policy? Choose one with +policy=NAME:\n{format_choices(choices_available(argv, 'policy'))}"
    return None


def _no_choice(group: str, name: str, known: dict[str, str], word: str) -> str:
    meant = suggestion(name, list(known))
    return f"there is no {group} {name!r}.{meant} Choose one with {word}:\n{format_choices(known)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" Did you mean {near[0]}?" if near else ""


def _is_literal_name(value: str) -> bool:
    """True if `value` is one name or several; globs, ranges and null are left to Hydra."""
    return value != "null" and not any(sign in value for sign in "()[]{}*$@")


def find_unwritable_outputs(argv: Sequence[str]) -> str | None:
    """The error text for an `outputs` folder that cannot be written, before Hydra logs there; None if it can."""
    for name in choices_given(argv, "outputs") or ["outputs"]:
        if not name:  # Hydra would write to /runs
            return "outputs is empty, as with a variable of the shell that is not set; name a folder with outputs=DIR."
        if name.startswith("~"):  # in quotes, which Hydra would take for the name of a folder here
            return f"outputs={name}: the shell leaves ~ as it is there. Write the folder out: outputs=$HOME/runs."
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
