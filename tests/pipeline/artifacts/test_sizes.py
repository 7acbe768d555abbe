"""Numbers of bytes as reports and the cache print them."""

import pytest

from pipeline.artifacts.manifest import format_nbytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (12.34, "12.3 B"),
        (999, "999 B"),
        (1200, "1.20 kB"),
        (9996, "10.0 kB"),
        (999_960, "1.00 MB"),
        (3.4e6, "3.40 MB"),
        (1.5e9, "1.50 GB"),
        (2e12, "2.00 TB"),
        (1.2e16, "12,000 TB"),
    ],
)
def test_bytes_are_printed_with_three_digits_and_a_unit(nbytes: float, text: str) -> None:
    assert format_nbytes(nbytes) == text
