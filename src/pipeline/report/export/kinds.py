"""The words of `export=`, which the command line takes before Hydra reads the others."""

from collections.abc import Mapping, Sequence

from pipeline.errors import UserError

KINDS: Mapping[str, str] = {
    "latex": "a .tex file for each table",
    "csv": "a .csv file for each table, one line a cell",
    "figures": "a .pdf and a .svg file for each figure",
    "html": "report.html, one page of everything",
}
"""The words of `export=`, and what each writes."""


def parse_kinds(value: str) -> tuple[str, ...]:
    """The kinds that `export=VALUE` asks for. Raises UserError for an unknown one, and for none."""
    kinds = tuple(dict.fromkeys(word.strip() for word in value.strip("[]").split(",") if word.strip()))
    unknown = [word for word in kinds if word not in KINDS]
    if unknown or not kinds:
        known = "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items())
        got = f"there is no {unknown[0]!r}" if unknown else "nothing is named"
        raise UserError(f"export={value}: {got}. Give one or more of {known}. Commas part them: export=latex,csv.")
    return kinds


def check_runs(words: Sequence[str]) -> None:
    """Raises UserError if a command with these words leaves no results."""
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if key == "stage" and value != "all":
            raise UserError(f"export= writes the results of a run, and {word} leaves none. Leave one of the two out.")
