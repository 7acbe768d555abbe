"""Names of exported files."""

import re


def slug(text: str) -> str:
    """The text in small letters, digits and single dashes; `x` where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
