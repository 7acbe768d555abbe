"""Libraries that only some families need."""

from importlib.util import find_spec


def require(library: str, family: str) -> None:
    """Raises ValueError that says what to install where `library` is missing."""
    if find_spec(library) is None:
        raise ValueError(
            f"the predictor {family} needs {library}, which is not installed: pip install -e '.[predictors]'; or leave "
            "this family out"
        )


def within(family: str, name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raises ValueError for a hyperparameter out of range, ends included."""
    if not low <= value <= high:
        upper = "" if high == float("inf") else f" and at most {high:g}"
        raise ValueError(f"{family}: {name} is {value}; it must be at least {low:g}{upper}")
