"""`run_commands.py FILE`: several commands of the pipeline in one process, whose imports they share.

FILE holds a JSON list of command lines; each ends with a line `ended CODE` of its own.
"""

import json
import sys
from pathlib import Path

from pipeline.command import main


def run(words: list[str]) -> int:
    sys.argv = ["pipeline", *words]
    try:
        main.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    for command in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        print(f"ended {run(command)}", flush=True)
