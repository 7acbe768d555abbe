"""`python -m native`: compiles the core if a compiler is there, and says what is in use."""

import argparse
import sys
import time

from native import build


def main() -> int:
    """1: the core could not be compiled; runs as plain Python all the same."""
    parser = argparse.ArgumentParser(prog="python -m native", description=__doc__)
    parser.add_argument("--again", action="store_true", help="compile also if nothing has changed")
    again = parser.parse_args().again
    if not again and build.is_current():
        print("the compiled core is up to date")
        return 0
    if obstacle := build.find_obstacle():
        print(f"the core runs as plain Python: {obstacle}")
        return 0
    begun_s = time.monotonic()
    print("compiling the core, about a minute ...", flush=True)
    try:
        build.build()
    except build.BuildError as problem:
        print(f"the core runs as plain Python: it could not be compiled\n{problem}", file=sys.stderr)
        return 1
    print(f"compiled in {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
