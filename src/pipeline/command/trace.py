"""`python -m pipeline trace`: recorded traces as files that travel."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.arguments import split_options
from pipeline.config.build import load
from pipeline.errors import UserError

USAGE = """\
python -m pipeline trace export FOLDER FILE license=TEXT origin=TEXT   write the trace of stage record_outcomes to FILE
python -m pipeline trace show FILE                                     what a trace file says of itself
python -m pipeline trace import FILE [outputs=FOLDER] [name=NAME]      check it and unpack it below outputs/traces"""


def main(argv: Sequence[str]) -> int:
    """Runs one of the commands. Raises UserError."""
    commands: Mapping[str, tuple[Callable[..., None], int, tuple[str, ...]]] = {
        "export": (_export, 2, ("license", "licence", "origin")), "show": (_show, 1, ()),
        "import": (_import, 1, ("outputs", "name")),
    }  # fmt: skip
    command, count, options = commands[argv[0]] if argv and argv[0] in commands else (None, 0, ())
    words, given = split_options(argv[1:], options)
    if command is None or len(words) != count:
        raise UserError(f"trace: {' '.join(argv) or 'nothing'} was asked for; there are\n{USAGE}")
    try:
        command(*map(Path, words), **given)
    except (ValueError, OSError) as problem:
        raise UserError(str(problem)) from problem
    return 0


def _export(folder: Path, file: Path, license: str = "", licence: str = "", origin: str = "") -> None:  # noqa: A002
    about = _call("export_trace", folder, file, _call("TraceOrigin", license=license or licence, origin=origin))
    print(f"{_described(about)}\nwritten: {file}, {file.stat().st_size / 1e6:.1f} MB")


def _show(file: Path) -> None:
    print(_described(_call("read_about", file)))


def _import(file: Path, outputs: str = "outputs", name: str = "") -> None:
    folder = (Path(outputs) / "traces" / (name or file.stem)).absolute()
    print(_described(_call("import_trace", file, folder)))
    print(f"unpacked: {folder}\nto simulate it: runtime=simulated runtime.outcomes.path={folder}")


def _call(name: str, *args: Any, **options: Any) -> Any:
    return load(f"serving.outcomes.trace_file.{name}", "trace")(*args, **options)


def _described(about: Mapping[str, Any]) -> str:
    made = ", ".join(f"{key}: {value}" for key, value in about["made_from"].items())
    text = f"the text of policy {about['policy']}" if about["policy"] else "the target's own greedy text"
    return (
        f"a trace of {about['sessions']} sessions, {text}, {about['rows']} positions; {made}\n"
        f"licence: {about['license']}\norigin: {about['origin']}"
    )
