"""A process that builds corpus -> model -> report and says what it does: tests start it, stop it and kill it.

    python build_artifacts.py ROOT [STAGE]

At STAGE it writes state, says so, and waits for a line on standard input before it goes on.
"""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.artifacts.progress_display import LineDisplay, ProgressCallback
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store


def graph(steps: int = 3) -> Stage:
    corpus = Stage("corpus", "test.corpus", {"seed": 1})
    model = Stage("model", "test.model", {"corpus": {"_stage_": "corpus"}, "steps": steps}, inputs={"corpus": corpus})
    return Stage("report", "test.report", {"model": {"_stage_": "model"}}, inputs={"model": model})


def say(text: str) -> None:
    print(text, flush=True)


def build(stop_at: str, stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path]) -> None:
    state = work / "steps"
    done = int(state.read_text()) if state.exists() else 0
    say(f"call {stage.name} from step {done}")
    if stage.name == stop_at:
        state.write_text("2")
        (out / "stray").write_text("of an attempt that does not end")
        say("stopped")
        sys.stdin.readline()
    sources = [(folder / "result.txt").read_text() for folder in inputs.values()]
    (out / "result.txt").write_text(" ".join([stage.name, *sources]))


def main(root: str, stop_at: str = "") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored

    def call(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback) -> None:
        build(stop_at, stage, out, work, inputs)

    path = Runner(Store(Path(root)), call, LineDisplay(sys.stdout)).ensure_built(graph())
    say(f"have {(path / 'result.txt').read_text()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
