"""`run_commands.py FILE [KIND]`: several commands of the pipeline in one process, whose imports they share.

FILE holds a JSON list of command lines; each ends with a line `ended CODE` of its own. KIND: figures are written as
such files alone, which takes half as long.
"""

import json
import sys
from pathlib import Path

from pipeline.command import main
from pipeline.report import figures
from training.fitting import figures as training_figures


def run(words: list[str]) -> int:
    sys.argv = ["pipeline", *words]
    try:
        main.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def write_only(kind: str) -> None:
    for module in (figures, training_figures):
        module._METADATA = {kind: module._METADATA[kind]}


if __name__ == "__main__":
    for kind in sys.argv[2:]:
        write_only(kind)
    for command in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        print(f"ended {run(command)}", flush=True)
