"""The wheel, installed in an environment that does not know the checkout: what is in it, a plan, and a run."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("hydra_plugins", "native", "pipeline", "serving", "training")
TOY = ("+policy=synera", "model=toy", "workload=smoke", "tracking.uri=none", "trainer.threads=1")

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from: a build leaves the compiled core beside its sources."""
    if not find_spec("hatchling"):
        pytest.skip("no wheel is built: pip install -e '.[dev]' brings hatchling")
    folder = tmp_path_factory.mktemp("sources")
    leave = shutil.ignore_patterns("__pycache__", "lib", "outputs")
    for name in ("src", "conf", "docs/results"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(sources: Path, out: Path, compiled: bool) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    environment = {"PATH": "/usr/bin:/bin", "TANDEM_COMPILE": str(int(compiled)), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(sources, tmp_path_factory.mktemp("pure"), compiled=False)


def install(wheel: Path, folder: Path) -> Run:
    """What runs a command of the wheel in an empty folder.

    The environment is a new one. It finds the packages of this one by their folder alone, so that the checkout, which
    is installed here as editable, is not found.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    place = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(place), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    others = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (place / "dependencies.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    (folder / "empty").mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(folder / "venv" / "bin" / "python"), *words],
            cwd=folder / "empty", env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_a_wheel_has_all_that_commands_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and not {"__pycache__", "lib"} & set(path.parts[len(ROOT.parts) :])
    }
    data = [path for name in ("conf", "docs/results") for path in (ROOT / name).rglob("*") if path.is_file()]
    assert len(data) > 500
    wanted = sources | {f"pipeline/{path.relative_to(ROOT).as_posix()}" for path in data}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert f"\nVersion: {PROJECT['project']['version']}\n" in metadata
    assert wheel.name.endswith("-py3-none-any.whl")


def test_an_installed_wheel_runs_without_the_checkout(installed: Run) -> None:
    found = installed("-c", "import pipeline, sys; print(pipeline.__file__); print(*sys.path, sep='\\n')")
    assert "site-packages/pipeline/__init__.py" in found.stdout.partition("\n")[0]
    assert str(ROOT / "src") not in found.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help", "groups and their choices:"),
        ("show policy", "Synera: unsure and important chunks"),
        ("doctor", PROJECT["project"]["version"]),
        ("results list", "synera/table4"),
        ("+policy=synera stage=plan", "stages, in the order in which they run:"),
        ("-m +policy=synera,wisp network=wifi,lte stage=plan", "4 jobs"),
        ("+experiment=clock stage=plan", "clock_scores"),
    ],
)
def test_commands_of_an_installed_wheel(installed: Run, words: str, expected: str) -> None:
    done = installed("-m", "pipeline", *words.split())
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.parametrize("words", ['"policy=synera"', '"policy=wisp"', '"policy=hyperion", "hardware=hyperion"'])
def test_artifacts_of_a_wheel_are_those_of_the_checkout(installed: Run, words: str) -> None:
    program = f"from pipeline import api; print(*(stage.key for stage in api.stages([{words}])))"
    ours = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "serve-" in ours.stdout
    assert installed("-c", program).stdout == ours.stdout


def test_an_installed_wheel_trains_and_serves_and_writes_below_the_users_folder(installed: Run, tmp_path: Path) -> None:
    done = installed("-m", "pipeline", *TOY, f"outputs={tmp_path / 'mine'}")
    assert done.returncode == 0, done.stderr
    assert "time to first token (TTFT)" in done.stdout
    assert f"code tandem-llm {PROJECT['project']['version']}," in re.sub(r"\s+", " ", done.stdout)
    assert {path.name for path in (tmp_path / "mine").iterdir()} >= {"artifacts", "runs"}


def test_what_needs_a_checkout_says_so(installed: Run) -> None:
    done = installed("-m", "pipeline", "results", "write")
    assert done.returncode == 2
    assert "Run it in a checkout of the repository" in done.stderr


def test_a_wheel_with_the_compiled_core(sources: Path, tmp_path: Path) -> None:
    wheel = build(sources, tmp_path, compiled=True)
    assert not wheel.name.endswith("-none-any.whl")
    run = install(wheel, tmp_path)
    assert run("-c", "from native import loader; print(loader.describe())").stdout == "compiled\n"
    done = run("-m", "pipeline", *TOY, f"outputs={tmp_path / 'mine'}")
    assert done.returncode == 0, done.stderr
    assert "core compiled" in re.sub(r"\s+", " ", done.stdout)
