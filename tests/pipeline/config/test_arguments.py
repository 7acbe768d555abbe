"""What people write on the command line, and what they are told when it names no policy."""

from pathlib import Path

import pytest

from pipeline.config import arguments

POLICIES = [
    "citer", "cloud_centric", "cloud_speculative", "co_llm", "delay_adaptive", "edge_centric", "edgefm", "gpipe", "hat",
    "heft", "hybrid", "hyperion", "sled", "specedge", "synera", "tandem", "tandem_device", "u_medusa", "u_sarathi",
    "u_shape", "wisp", "wisp_deadline",
]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "hydra"),
    [
        ("policy=synera", "policy=synera"),
        ("+policy=synera", "policy=synera"),
        ("+policy=sled,synera", "policy=sled,synera"),
        ("experiment=x", "+experiment=x"),
        ("+experiment=x", "+experiment=x"),
        ("policy/draft=window", "policy/draft=window"),
        ("+policy.extra=1", "+policy.extra=1"),
        ("-m", "-m"),
    ],
)
def test_options_with_and_without_an_equals_sign_are_equal(written: str, hydra: str) -> None:
    assert set(arguments.normalise(["a=b", written])) == {"a=b", hydra}


def test_the_experiment_is_applied_before_all_other_overrides() -> None:
    words = ["+variant/synera/method=cloud_centric", "experiment=synera/table4", "a=b"]
    assert arguments.normalise(words) == ["+experiment=synera/table4", "+variant/synera/method=cloud_centric", "a=b"]
    split = ["--config-dir", "conf", "-m", "a=b", "--cfg=job", "+experiment=x"]
    assert arguments.normalise(split) == ["+experiment=x", "a=b", "--config-dir", "conf", "-m", "--cfg=job"]


@pytest.mark.parametrize(
    "argv",
    [
        ["a=b", "-m", "~c", "d=e"],
        ["-m", "a=b", "~c", "d=e"],
        ["a=b", "~c", "d=e", "-m"],
    ],
)
def test_options_stand_behind_the_overrides_wherever_they_were_written(argv: list[str]) -> None:
    assert arguments.normalise(argv) == ["a=b", "~c", "d=e", "-m"]


@pytest.mark.parametrize(
    "options", [["--config-dir", "conf"], ["-cd", "my=conf"], ["--info", "defaults"], ["-i"], ["-c", "job", "-m"]]
)
def test_an_option_keeps_its_value(options: list[str]) -> None:
    assert arguments.normalise([*options, "a=b"]) == ["a=b", *options]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["policy=synera"], ["synera"]),
        (["+policy=sled, synera"], ["sled", "synera"]),
        (["policy='synera'"], ["synera"]),
        (["policy/draft=window", "policy.name=x"], []),
        ([], []),
    ],
)
def test_choices_given_lists_the_policies_of_a_command(argv: list[str], found: list[str]) -> None:
    assert arguments.choices_given(argv, "policy") == found


def test_a_configuration_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    assert str(missing) in str(arguments.find_missing_folder(["--config-dir", str(missing), "policy=sled"]))
    assert str(missing) in str(arguments.find_missing_folder([f"hydra.searchpath=[file://{missing}]"]))
    assert arguments.find_missing_folder(["--config-dir", str(tmp_path), "hydra.searchpath=[pkg://mine.conf]"]) is None


@pytest.mark.parametrize(
    "argv", [["+policy=synera"], ["-m", "policy=sled,synera"], ["+experiment=compare"], ["policy=glob(*)", "-m"]]
)
def test_a_correct_command_has_no_misspelling(argv: list[str]) -> None:
    assert arguments.find_misspelling(argv) is None


@pytest.mark.parametrize(
    ("argv", "first"),
    [
        ([], "which policy? Choose one with +policy=NAME:"),
        (["hardware=pixel7"], "which policy? Choose one with +policy=NAME:"),
        (["policy=synra"], "there is no policy 'synra'. Did you mean synera? Choose one with +policy=NAME:"),
        (
            ["+experiment=leaderboard", "leaderboard.add=[sled,synra]"],
            "there is no policy 'synra'. Did you mean synera? Choose one with leaderboard.add=[NAME]:",
        ),
        (
            ["-m", "+policy=sled,synra"],
            "there is no policy 'synra'. Did you mean synera? Choose one with +policy=NAME:",
        ),
        (["policy=unset"], "there is no policy 'unset'. Choose one with +policy=NAME:"),
        (["policy=null"], "there is no policy 'null'. Choose one with +policy=NAME:"),
    ],
)
def test_an_unknown_choice_lists_the_choices_one_per_line(argv: list[str], first: str) -> None:
    said = (arguments.find_misspelling(argv) or "").splitlines()
    assert said[0] == first
    assert [line.split()[0] for line in said[1:]] == POLICIES
    assert all(len(line.split()) > 3 for line in said[1:])


def test_two_words_for_the_policy_are_refused() -> None:
    said = arguments.find_misspelling(["policy=synera", "network=lte", "policy=sled"])
    assert said == (
        "policy=synera and policy=sled both choose the policy, and a run has one. Name one of them, or compare them: "
        "-m policy=synera,sled"
    )
    assert arguments.find_misspelling(["-m", "policy=synera,sled"]) is None
    assert arguments.find_misspelling(["-m", "policy=synera,sled", "policy=sled"]) is None  # narrows the sweep


@pytest.mark.parametrize(
    "how", ["--config-dir={}", "--config-dir {}", "-cd {}", "hydra.searchpath=[file://{}]", "+hydra.searchpath=[{}]"]
)
def test_policies_of_a_users_config_folder_are_known(how: str, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("# My own.\nname: mine\n")
    argv = how.format(tmp_path).split()
    assert arguments.choices_available(argv, "policy")["mine"] == "My own."
    assert arguments.find_misspelling([*argv, "policy=mine"]) is None


def test_the_configuration_of_the_project_is_found() -> None:
    assert (arguments.conf_dir() / "config.yaml").is_file()


def test_a_wheels_own_configuration_comes_before_a_conf_folder_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, wheels = tmp_path / "conf", tmp_path / "installed" / "conf"
    users.mkdir()
    monkeypatch.setattr(arguments, "CHECKOUT_CONF", users)
    monkeypatch.setattr(arguments, "WHEEL_CONF", wheels)
    assert arguments.conf_dir() == users
    wheels.mkdir(parents=True)
    assert arguments.conf_dir() == wheels


def test_a_file_that_is_no_text_does_not_hide_the_other_choices(tmp_path: Path) -> None:
    (tmp_path / "network").mkdir()
    (tmp_path / "network" / "latin.yaml").write_bytes(b"# na\xefve\n")
    found = arguments.choices_available(["--config-dir", str(tmp_path)], "network")
    assert found["latin"] == "na\ufffdve"
    assert "wifi" in found


def test_of_two_words_for_outputs_the_last_is_checked_as_hydra_takes_it(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    words = [f"outputs={tmp_path}", f"outputs={taken}"]
    assert "cannot write below" in str(arguments.find_unwritable_outputs(words))
    assert arguments.find_unwritable_outputs(words[::-1]) is None


def test_outputs_with_a_comma_in_quotes_are_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert arguments.find_unwritable_outputs(["outputs='a,b'"]) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a,b"]
    assert arguments.choices_given(["policy='sled','synera'"], "policy") == ["sled", "synera"]


@pytest.mark.parametrize("word", ["outputs=", "outputs=''"])
def test_empty_outputs_are_refused(word: str) -> None:
    assert "outputs is empty" in str(arguments.find_unwritable_outputs([word]))


@pytest.mark.parametrize("word", ["outputs=~/runs", "outputs='~/runs'"])
def test_a_home_folder_that_no_shell_wrote_out_is_refused(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Write the folder out: outputs=$HOME/runs" in str(arguments.find_unwritable_outputs([word]))
    assert not list(tmp_path.iterdir())
