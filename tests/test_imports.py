"""Import rules, read from the source: layers, cycles, and what starting up must not load."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
LAYERS = {
    "native": ("machine", "modules", "loader", "classes", "build", "__main__"),
    "serving": (
        "messages", "progress", "core", "workload", "learned", "network", "hardware", "transport", "engines", "policy",
        "drivers", "nodes", "deployment", "metrics", "log", "outcomes", "runtimes", "studies", "frontend", "stages",
        "cloud", "device", "page",
    ),
    "training": (
        "fitting", "embedded_pair", "checkpoints", "latency", "synera", "wisp", "hat", "routing", "hyperion", "privacy",
    ),
    "pipeline": (
        "errors", "artifacts", "config", "report", "search", "running", "parallel", "api", "answers", "command",
        "__main__",
    ),
}  # fmt: skip
"""The children of each package, from the bottom up: each imports only those before it, for type checking too."""
CORE = (
    "messages", "core", "workload", "learned", "network", "hardware", "policy", "drivers/simulator", "nodes",
    "deployment", "metrics", "log", "runtimes/emulated", "runtimes/simulated", "studies/capacity",
)  # fmt: skip
"""The packages and modules of `serving` that a simulation runs, beside its source of tokens."""
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


PROGRAMS = {"serving.cloud", "serving.device", "serving.page"}
"""These modules are run as programs, and only then import the pipeline, which composes their configuration."""
SHARED = {"serving.metrics.definitions", "serving.hardware.error_pools"}
"""The exceptions: the pipeline imports from `serving` the definitions of metrics, which are plain data, and the rules
by which draws of the clock take their errors and chips share a processor.
"""


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
def test_serving_training_and_pipeline_import_each_other_one_way_only(package: str, others: set[str]) -> None:
    assert len(files(package)) > 15
    found = [
        f"{module} imports {other}"
        for module, imports in module_graph().items()
        for other in imports - SHARED
        if module.partition(".")[0] == package and other.partition(".")[0] in _forbidden(module, others)
    ]
    assert found == []


def _forbidden(module: str, others: set[str]) -> set[str]:
    return others - {"pipeline"} if module in PROGRAMS else others


def test_the_shared_modules_import_no_other() -> None:
    assert [module_graph()[module] for module in SHARED] == [set()] * len(SHARED)


@cache
def module_graph() -> dict[str, set[str]]:
    """The modules of `src`, each with those of `src` that it imports anywhere, for type checking too."""
    paths = {_module_name(path): path for path in SRC.rglob("*.py")}
    return {name: _imported_modules(path, paths) - {name} for name, path in paths.items()}


def _module_name(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in members}
    return found & known.keys()


def child_of(package: str, module: str) -> str | None:
    """The child of `package` that holds `module`; None for a module outside `package`, and for `package` itself."""
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else None


@pytest.mark.parametrize("package", LAYERS)
def test_every_child_of_a_package_has_a_layer(package: str) -> None:
    children = {child for module in module_graph() if (child := child_of(package, module))}
    assert children == set(LAYERS[package])


@pytest.mark.parametrize("package", LAYERS)
def test_no_module_imports_a_higher_layer(package: str) -> None:
    rank = {name: number for number, name in enumerate(LAYERS[package])}
    upward = [
        f"{module} imports {other}"
        for module, others in module_graph().items()
        for other in others
        if (own := child_of(package, module)) and (used := child_of(package, other)) and rank[used] > rank[own]
    ]
    assert upward == []


def test_modules_import_each_other_in_no_cycle() -> None:
    assert cycle(module_graph()) is None


def test_the_children_of_each_package_import_each_other_in_no_cycle() -> None:
    packages = [_module_name(path) for path in SRC.rglob("__init__.py")]
    found = {package: cycle(child_graph(package)) for package in packages}
    assert {package: names for package, names in found.items() if names} == {}


def child_graph(package: str) -> dict[str, set[str]]:
    """The children of `package`, each with the children that its modules import."""
    graph = defaultdict[str, set[str]](set)
    for module, others in module_graph().items():
        if own := child_of(package, module):
            graph[own] |= {used for other in others if (used := child_of(package, other))} - {own}
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """The names of one cycle of `graph`, or None."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_a_cycle_is_found_and_named() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) or ()) == {"b", "c"}
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) is None


def test_the_serving_core_loads_nothing_heavy() -> None:
    assert broken(core_files(), HEAVY, everywhere=False) == []


def core_files() -> list[Path]:
    found = [files(f"serving/{name}") or [SRC / "serving" / f"{name}.py"] for name in CORE]
    return [path for paths in found for path in paths]


def test_the_import_check_detects_a_heavy_import() -> None:
    assert broken(files("serving/engines/torch"), {"torch"}, everywhere=False)


def loaded(code: str) -> set[str]:
    """Top-level packages that a fresh process has loaded after `code`."""
    return {module.partition(".")[0] for module in loaded_modules(code)}


def loaded_modules(code: str) -> set[str]:
    probe = f"import sys\n{code}\nprint('LOADED', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_importing_the_serving_core_loads_nothing_heavy() -> None:
    modules = ", ".join(map(_module_name, core_files()))
    assert loaded(f"import {modules}").isdisjoint(HEAVY - {"asyncio"})


UNPLANNED = {
    "torch", "lightning", "mlflow", "transformers", "pandas", "pyarrow", "matplotlib", "onnx", "onnxruntime", "numpy",
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "computes"),
    [(("synera",), set()), (("hat",), set()), (("gpipe", "hardware=hyperion"), {"numpy"})],
    ids=("synera", "hat", "gpipe"),
)
def test_a_plan_imports_no_package_that_only_stages_need(
    policy: tuple[str, ...], computes: set[str], tmp_path: Path
) -> None:
    """GPipe's plan divides the model over the tiers, in numpy, to see that there is a division."""
    assert loaded(plan_code(f"+policy={policy[0]}", *policy[1:], f"outputs={tmp_path}")) & UNPLANNED == computes


def plan_code(*words: str) -> str:
    """A program that plans a job as the command line does."""
    argv = ["pipeline", *words, "model=toy", "stage=plan"]
    run = "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    return f"from pipeline.command.main import main\nsys.argv = {argv!r}\n{run}"


@pytest.mark.parametrize(("words", "status"), [(("--help",), 0), (("+policy=snera",), 2)], ids=("help", "misspelt"))
def test_help_and_a_misspelt_choice_compose_nothing(words: tuple[str, ...], status: int) -> None:
    run = f"try:\n    main()\nexcept SystemExit as end:\n    assert (end.code or 0) == {status}"
    found = loaded(f"from pipeline.command.main import main\nsys.argv = {['pipeline', *words]!r}\n{run}")
    assert found.isdisjoint(UNPLANNED | {"hydra", "omegaconf", "yaml", "antlr4"})


def test_a_plan_imports_nothing_that_serves_records_or_reports(tmp_path: Path) -> None:
    found = loaded_modules(plan_code("+policy=synera", f"outputs={tmp_path}"))
    assert "serving.runtimes.emulated" in found
    assert found.isdisjoint(
        ("serving.drivers.simulator", "serving.nodes.device", "serving.log.event_log", "serving.log.perfetto",
         "serving.metrics.recorder", "serving.metrics.batch_timing", "serving.metrics.utilisation")
    )  # fmt: skip


def test_a_plan_that_was_composed_before_imports_no_composer(tmp_path: Path) -> None:
    code = plan_code("+policy=synera", f"outputs={tmp_path}")
    first, second = loaded(code), loaded(code)
    composers = {"hydra", "omegaconf", "yaml", "antlr4"}
    assert first >= composers
    assert second.isdisjoint(composers | UNPLANNED)
    assert second >= {"pipeline", "serving", "training"}
