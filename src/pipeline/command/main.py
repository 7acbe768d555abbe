"""The command line: `python -m pipeline +policy=synera`, and commands such as `show`, `results`, `trace` and `ui`."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from pipeline.command.closed_pipe import ends_at_closed_pipe
from pipeline.config import arguments, composed_cache
from pipeline.config.collector import collector_paused, resume_collector
from pipeline.config.hydra_errors import as_config_errors
from pipeline.errors import CLOSED_PIPE, INTERRUPTED, UserError, print_error, print_interrupted

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.artifacts.stage import Stage

HELP_FLAGS = frozenset({"--help", "-h"})
INFO_FLAGS = frozenset({"--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--resolve", "--package"})


def main() -> None:
    with ends_at_closed_pipe():
        try:
            _main(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _main(argv: list[str]) -> None:
    commands = {
        "cache": _run_cache_command, "show": _run_show_command, "results": _run_results_command,
        "speeds": _run_speeds_command, "trace": _run_trace_command,
        "doctor": _run_doctor_command, "ui": _run_ui_command, "sweep": _run_sweep_command,
        "report": _run_report_command,
    }  # fmt: skip
    folders, argv = arguments.leading_folders(argv)
    if not argv and not arguments.find_missing_folder(folders):
        _print_policies(folders)
    command = commands.get(argv[0] if argv else "")
    if command and argv[0] != "cache" and HELP_FLAGS & set(argv):  # argparse answers for `cache`
        from pipeline.command.help import command_usage

        print(command_usage(argv[0]))
        sys.exit(0)
    if command:
        try:
            sys.exit(command([*argv[1:], *folders]))
        except UserError as error:
            sys.exit(print_error(error))
    if argv and argv[0].isidentifier():
        sys.exit(print_error(_no_command(argv[0], list(commands))))
    _run(arguments.normalise([*argv, *folders]))


def _print_policies(argv: Sequence[str]) -> NoReturn:
    print("usage: python -m pipeline +policy=NAME [GROUP=CHOICE ...], or --help for all there is. The policies:")
    print(arguments.format_choices(arguments.choices_available(argv, "policy")))
    sys.exit(0)


def _no_command(word: str, commands: Sequence[str]) -> str:
    meant = _other_words(word) or arguments.suggestion(word, commands)
    return (
        f"there is no command {word!r}.{meant} There are {', '.join(commands)}. A run begins with "
        "+policy=NAME. `python -m pipeline --help` has them all."
    )


def _other_words(word: str) -> str:
    """What is written otherwise than as a command; empty for anything else."""
    if word == "export":
        return " Files are asked for by export=latex,csv,figures behind a run, or behind `report FOLDER`."
    kind = next((one for one in ("experiment", "policy") if word in arguments.choices_available([], one)), None)
    return f" Did you mean +{kind}={word}?" if kind else ""


def _run(argv: list[str]) -> None:
    """Runs or plans what the words configure, and ends the process."""
    if HELP_FLAGS & set(argv):
        from pipeline.command.help import overview

        print(overview(argv))
        sys.exit(0)
    try:
        argv, kinds = _without_export(argv)
    except UserError as error:
        sys.exit(print_error(error))
    problem = arguments.find_missing_folder(argv)
    if not problem and not INFO_FLAGS & set(argv):
        problem = arguments.find_misspelling(argv) or arguments.find_unwritable_outputs(argv)
    if problem:
        sys.exit(print_error(problem))
    if kinds:
        _run_and_export(argv, kinds)
    entry = composed_cache.find_entry(argv)
    if entry and _print_known_plan(entry):
        sys.exit(0)
    _run_hydra(argv, entry)


def _without_export(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words for Hydra, and what `export=` asks for. Raises UserError for an unknown kind, or where nothing runs."""
    given = [word for word in argv if word.lstrip("+").startswith("export=")]
    if not given:
        return argv, ()
    from pipeline.report.export.kinds import check_runs, parse_kinds

    words = [word for word in argv if word not in given]
    check_runs(words)
    return words, parse_kinds(given[-1].partition("=")[2])


def _run_and_export(argv: list[str], kinds: Sequence[str]) -> NoReturn:
    """Runs to the end and writes the kinds of what complete jobs left, in the results' own folder."""
    from pipeline.command.report import export_last
    from pipeline.report.sweep import SweepCallback
    from pipeline.running import WAIT_VARIABLE

    os.environ[WAIT_VARIABLE] = "1"  # the run's folder is whole when the command goes on
    code: int | str | None = 0
    try:
        _run_hydra(argv)
    except SystemExit as end:
        code = end.code
    if code in (INTERRUPTED, CLOSED_PIPE):
        sys.exit(code)
    try:
        if not code or SweepCallback.results:
            export_last(kinds)
    except UserError as problem:
        sys.exit(code or print_error(problem))
    sys.exit(code)


@collector_paused()
def _print_known_plan(entry: composed_cache.CacheEntry) -> bool:
    from pipeline.running import print_known_plan

    try:
        return print_known_plan(entry)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@collector_paused()
def _run_hydra(argv: list[str], entry: composed_cache.CacheEntry | None = None) -> None:
    failed: list[int] = []
    try:
        _compose_and_run(argv, entry, failed)
    except KeyboardInterrupt:
        if not report_interrupted_sweep() and INTERRUPTED not in failed:  # else it was said
            print_interrupted()
        sys.exit(INTERRUPTED)
    except UserError as problem:
        sys.exit(print_error(problem))
    sys.exit(failed[0] if failed else 0)


def _compose_and_run(argv: list[str], entry: composed_cache.CacheEntry | None, failed: list[int]) -> None:
    """Adds the exit status of each job that failed to `failed`."""
    import hydra

    from pipeline.config.compose import prepare_hydra
    from pipeline.config.multirun import composed_once, defer_to_jobs
    from pipeline.report.hydra_notes import mask_hydras_notes
    from pipeline.running import run_to_exit_status

    prepare_hydra()
    mask_hydras_notes()
    sys.argv = [sys.argv[0], *defer_to_jobs(argv)]
    if "stage=plan" in argv and "report=full" not in argv:  # Hydra's notes of a job would be removed again
        sys.argv.insert(sys.argv.index("stage=plan"), "hydra.output_subdir=null")
    task = hydra.main(version_base="1.3", config_path=str(arguments.conf_dir()), config_name="config")

    @task
    def job(cfg: "DictConfig") -> None:
        resume_collector()
        code = run_to_exit_status(cfg, entry)
        if code:
            failed.append(code)
        if code == INTERRUPTED:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster's scheduler ends a run as Ctrl-C does
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints what is wrong itself, and exits
    with as_config_errors(), composed_once(argv):
        job()


def report_interrupted_sweep() -> bool:
    """Ends the sweep of this process with what its complete jobs left; False if none has begun."""
    module = sys.modules.get("pipeline.report.sweep")  # Hydra loads it; an interrupted import may not be repeated
    sweep = module and module.SweepCallback.running
    if sweep:
        sweep.interrupt()
    return bool(sweep)


def _run_show_command(argv: list[str]) -> int:
    from pipeline.command.help import show_group

    if problem := arguments.find_missing_folder(argv):
        raise UserError(problem)
    print(show_group(arguments.normalise(argv)))
    return 0


def _run_doctor_command(argv: list[str]) -> int:
    from pipeline.command.doctor import describe

    if argv:
        raise UserError(f"doctor takes no arguments, got {' '.join(argv)}.")
    print(describe())
    return 0


def _run_results_command(argv: list[str]) -> int:
    from pipeline.command import results

    return results.main(argv)


def _run_trace_command(argv: list[str]) -> int:
    from pipeline.command import trace

    return trace.main(argv)


def _run_sweep_command(argv: list[str]) -> int:
    from pipeline.command import sweep

    return sweep.main([*argv[:2], *arguments.normalise(argv[2:])], lambda words: _run(arguments.normalise(words)))


def _run_report_command(argv: list[str]) -> int:
    from pipeline.command import report

    return report.main(argv)


def _run_speeds_command(argv: list[str]) -> int:
    from pipeline.command.speeds import report
    from pipeline.report.table import print_parts

    parts = report(argv)
    print_parts(parts, sys.stdout)
    return 0


def _run_ui_command(argv: list[str]) -> int:
    from pipeline.report.mlflow_store import Tracking
    from pipeline.report.mlflow_ui import serve_ui

    given = dict(word.partition("=")[::2] for word in argv)
    known = {"outputs": "outputs", "tracking.uri": "uri", "tracking.experiment": "experiment"}
    port = given.pop("port", "5000")
    if not port.isdigit() or given.keys() - known.keys():
        raise UserError(f"ui takes outputs=FOLDER, tracking.uri=STORE, tracking.experiment=NAME and port=NUMBER, got "
                        f"{' '.join(argv)}.")  # fmt: skip
    try:
        serve_ui(Tracking(**{known[key]: value for key, value in given.items()}), int(port))
    except ValueError as problem:
        raise UserError(str(problem)) from problem
    return 0


def _run_cache_command(argv: list[str]) -> int:
    from datetime import UTC, datetime
    from pathlib import Path

    from pipeline.artifacts import cache
    from pipeline.artifacts.store import Store

    outputs = arguments.choices_given(argv, "outputs") or ["outputs"]
    store = Store(Path(outputs[0]).absolute() / "artifacts")
    return cache.main([w for w in argv if not w.startswith("outputs=")], store, _stages_of, datetime.now(UTC))


def _stages_of(words: Sequence[str]) -> "list[Stage]":
    """The stages of the run with these arguments. Raises UserError for what is wrong with them."""
    from pipeline import api

    problem = arguments.find_missing_folder(words) or arguments.find_misspelling(words)
    if problem:
        raise UserError(problem)
    with as_config_errors():
        return api.stages(words)
