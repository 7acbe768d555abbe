"""docs/extending.md and exhibits.md as written: their files are created and their commands are run."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
RUNNER = Path(__file__).parent / "programs" / "run_commands.py"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    python (-m pipeline .*)$", re.MULTILINE)


def text() -> str:
    return "".join((DOCS / name).read_text(encoding="utf-8") for name in ("extending.md", "exhibits.md"))


def commands() -> list[str]:
    return COMMAND.findall(text())


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for name, content in FILE.findall(text()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "my_lab" / "__init__.py").touch()
    return folder


def test_the_extension_docs_have_the_expected_files_and_commands() -> None:
    assert len(commands()) == 13
    assert len(FILE.findall(text())) == 25


def test_commands_plan_as_written(lab: Path) -> None:
    for command, printed in planned(lab, commands()).items():
        # Of a sweep: the last of the stages to build.
        assert re.search(r"\bserve(-\w+|$)", printed, re.MULTILINE), command


def planned(lab: Path, commands: Sequence[str]) -> dict[str, str]:
    """What each command prints with stage=plan; all in one process, whose imports they share."""
    words = [[*shlex.split(command)[2:], "stage=plan"] for command in commands]
    (lab / "commands.json").write_text(json.dumps(words), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(lab)}  # as `python -m` finds what is in the working directory
    done = subprocess.run(
        [sys.executable, str(RUNNER), "commands.json"],
        cwd=lab, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    printed = re.split(r"^ended (\d+)$", done.stdout, flags=re.MULTILINE)
    assert printed[1::2] == ["0"] * len(commands), done.stderr
    return dict(zip(commands, printed[::2], strict=False))


def run(lab: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=lab, capture_output=True, text=True, timeout=300, check=False
    )


def in_outputs(outputs: Path, command: str) -> str:
    return f"{command} outputs={outputs} trainer.threads=1 tracking.uri=none"


def test_a_users_test_of_a_policy_passes(lab: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "check_unsure.py"],
        cwd=lab, env=os.environ | {"PYTHONPATH": f"{DOCS.parent}{os.pathsep}{DOCS.parent / 'src'}"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_a_users_trained_score_is_recorded_and_replayed(lab: Path, outputs: Path) -> None:
    """The quickest run that trains the score, records it by name and reads it again."""
    (simulated,) = (command for command in scored_commands() if "runtime=simulated" in command)
    done = run(lab, in_outputs(outputs, simulated))
    assert done.returncode == 0, done.stderr
    assert "quality is that of policy doubtful's own recorded text" in done.stdout
    traces = [json.loads(file.read_text()) for file in outputs.glob("artifacts/record_outcomes/*/trace.json")]
    assert ["doubt"] in [[*trace["scorer_digests"]] for trace in traces]


def scored_commands() -> list[str]:
    return [command for command in commands() if "+policy=doubtful" in command]


@pytest.mark.slow
def test_a_users_trained_score_decides_the_same_in_every_runtime(lab: Path, outputs: Path) -> None:
    runs = [run(lab, in_outputs(outputs, command)) for command in scored_commands()]
    assert len(runs) == 3
    drafted = [re.search(r"^drafts .*?^(wasted|offloaded)", done.stdout, re.MULTILINE | re.DOTALL) for done in runs]
    assert all(drafted), [done.stderr for done in runs]
    assert len({found[0] for found in drafted if found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_serve_as_written(lab: Path, command: str) -> None:
    done = run(lab, command)
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout


RIDDLES = next(command for command in commands() if "workload=riddles" in command)


def riddles_with(policy: str) -> str:
    return RIDDLES.replace("+policy=sled", f"+policy={policy}")


def test_a_users_data_set_profiles_every_policy(lab: Path) -> None:
    plans = planned(lab, [riddles_with(policy) for policy in ("synera", "wisp", "hat", "citer")])
    assert all("serve-" in printed for printed in plans.values())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["synera", "wisp", "hat", "citer"])
def test_a_users_data_set_is_served_by_a_policy_that_was_profiled_on_its_other_prompts(
    lab: Path, outputs: Path, policy: str
) -> None:
    done = run(lab, in_outputs(outputs, riddles_with(policy)))
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
