"""Numbers of bytes as they are printed, of artifacts and in reports."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_nbytes(nbytes: float) -> str:
    """Three significant digits in powers of ten, whole bytes as they are: 512 B, 1.50 MB."""
    power = 0
    while abs(nbytes) >= 999.5 and power < len(_UNITS) - 1:  # which three digits would round up
        nbytes, power = nbytes / 1000, power + 1
    whole = abs(nbytes) >= 99.95 or (power == 0 and float(nbytes).is_integer())
    return f"{nbytes:,.{0 if whole else 1 if abs(nbytes) >= 9.995 else 2}f} {_UNITS[power]}"
