"""Who may import whom, read from the source; and what starting up must not load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
CORE = [
    "messages",
    "core/session",
    "nodes/requester",
    "nodes/device",
    "nodes/worker",
    "core/kv_accounting",
    "core/queued_request",
    "nodes/node_selector",
    "policy/policy",
    "core/keyed_random",
    "drivers/simulator",
    "metrics/recorder",
    "network/link",
    "hardware/latency",
    "hardware/chip",
    "hardware/testbed",
    "hardware/architecture",
    "hardware/timed_executor",
    "runtimes/emulated",
    "runtimes/runtime",
    "deployment/setup",
]
HEAVY = {
    "torch",
    "transformers",
    "lightning",
    "mlflow",
    "hydra",
    "omegaconf",
    "grpc",
    "asyncio",
    "pandas",
    "pyarrow",
    "matplotlib",
    "onnx",
    "onnxruntime",
}


def files(package: str) -> list[Path]:
    return sorted((SRC / package).rglob("*.py"))


def imported(file: Path, everywhere: bool) -> Iterator[tuple[int, str]]:
    """(line, module) of absolute imports: all of them, or those that run when the module is loaded."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is a relative import"
            yield node.lineno, node.module or ""
        if everywhere or not (_is_function(node) or _is_type_checking(node)):
            waiting.extend(ast.iter_child_nodes(node))


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


DOORS = {SRC / "serving" / name for name in ("cloud.py", "device.py", "page.py")}
"""Run as programs they are composed by the pipeline, as its own command is; nobody else's import does that."""


def broken(paths: list[Path], forbidden: set[str], everywhere: bool) -> list[str]:
    return [
        f"{path.relative_to(SRC)}:{line} imports {module}"
        for path in paths
        for line, module in imported(path, everywhere)
        if module.partition(".")[0] in forbidden
    ]


@pytest.mark.parametrize(
    ("package", "others"),
    [("pipeline", {"training", "serving"}), ("serving", {"pipeline", "training"}), ("training", {"pipeline"})],
)
def test_packages_know_each_other_one_way_only(package: str, others: set[str]) -> None:
    assert len(files(package)) > 15
    found = [line for path in files(package) for line in broken([path], _allowed(path, others), everywhere=True)]
    assert found == []


def _allowed(path: Path, others: set[str]) -> set[str]:
    return others - {"pipeline"} if path in DOORS else others


def test_the_serving_core_loads_nothing_heavy() -> None:
    core = [SRC / "serving" / f"{name}.py" for name in CORE] + files("serving/policy/slots")
    assert broken(core, HEAVY, everywhere=False) == []


def test_the_rule_would_notice() -> None:
    assert broken(files("serving/engines/torch"), {"torch"}, everywhere=False)


def loaded(code: str) -> set[str]:
    """Top-level packages that a fresh process has loaded after `code`."""
    probe = f"import sys\n{code}\nprint('LOADED', *sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_the_serving_core_is_light_in_fact() -> None:
    modules = ", ".join(f"serving.{name.replace('/', '.')}" for name in CORE)
    assert loaded(f"import {modules}, serving.policy.slots.scheduler").isdisjoint(HEAVY - {"asyncio"})


def test_a_plan_is_made_without_what_only_work_needs(tmp_path: Path) -> None:
    words = ["pipeline", "+policy=synera", "model=toy", "stage=plan", f"outputs={tmp_path}"]
    run = "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    code = f"from pipeline.command.main import main\nsys.argv = {words!r}\n{run}"
    unneeded = {
        "torch",
        "lightning",
        "mlflow",
        "transformers",
        "pandas",
        "pyarrow",
        "matplotlib",
        "onnx",
        "onnxruntime",
    }
    assert loaded(code).isdisjoint(unneeded)
