"""`python -m pipeline sweep resume`: its command line, and its folder."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.command import sweep as command
from pipeline.errors import UserError
from pipeline.report.sweep_note import SweepNote

COMMAND = ("+policy=synera,sled", "experiment=a", "+stages.fit.rounds=2", "seed=0,1", "~stages.old", "-m")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), COMMAND),
        (("policy=sled",), ("experiment=a", "+stages.fit.rounds=2", "seed=0,1", "~stages.old", "-m", "+policy=sled")),
        (
            ("+experiment=b", "seed=2", "stages.fit.rounds=3"),
            ("+policy=synera,sled", "~stages.old", "-m", "experiment=b", "seed=2", "+stages.fit.rounds=3"),
        ),
        (("~seed", "+new=1"), (*COMMAND[:3], *COMMAND[4:], "~seed", "+new=1")),
    ],
)
def test_a_word_replaces_the_command_s_whatever_its_plus(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    note = SweepNote(command=[*COMMAND, "hydra.sweep.dir=elsewhere"])
    assert command.resume_command(Path("/s"), note, words) == [*expected, "hydra.sweep.dir='/s'"]


@pytest.mark.parametrize("name", ["s,w", "it's", "a=b", "[1] {x}", "back\\"])
def test_hydra_reads_the_folder_as_it_is_named(name: str) -> None:
    word = command.resume_command(Path("/s") / name, SweepNote(command=COMMAND), ())[-1]
    found = OverridesParser.create().parse_override(word)
    assert not found.is_sweep_override()
    assert found.value() == f"/s/{name}"


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    SweepNote(command=COMMAND, folder=str(tmp_path / "gone")).write(tmp_path)
    ran: list[list[str]] = []
    with pytest.raises(UserError, match=r"the command ran in .*gone, which cannot be entered here \(No such file"):
        command.main(["resume", str(tmp_path)], ran.append)
    assert not ran


@pytest.mark.parametrize(
    "text",
    ['{"jobs": 5, "command": ["a"]}', '{"jobs": ["seed=0"]}', '{"command": "a"}', '{"folder": null}', "[]", "{"],
)
def test_a_note_of_other_types_is_not_readable(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"there is no readable sweep\.json in "):
        command.main(["status", str(tmp_path)], lambda words: None)
