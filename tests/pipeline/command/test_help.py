"""`python -m pipeline --help` and `show GROUP`: the groups of the configuration and their choices."""

import sys
from collections.abc import Callable

import pytest

from pipeline.command.help import GROUPS, all_groups, overview, show_group
from pipeline.command.main import main
from pipeline.config.arguments import choices_available
from pipeline.errors import ConfigError
from serving.metrics.definitions import METRICS


def test_help_fits_one_screen_and_lists_every_group_and_choice() -> None:
    text = overview([])
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 110
    assert set(GROUPS) == {name for name in all_groups([]) if "/" not in name} - {"variant"}
    for group in set(GROUPS) - {"experiment"}:
        assert all(name in text for name in choices_available([], group)), group


@pytest.mark.parametrize("group", all_groups([]))
def test_every_group_shows_its_choices_in_one_line_each(group: str) -> None:
    lines = show_group([group]).splitlines()
    choices = choices_available([], group)
    assert [line.split()[0] for line in lines[: len(choices)]] == list(choices)
    assert all(len(line.split()) > 2 for line in lines)


def test_help_of_a_group_lists_its_subgroups() -> None:
    assert "groups below: variant/hat/ablation, variant/hat/board, variant/hat/dataset" in show_group(["variant/hat"])


@pytest.mark.parametrize(
    ("argv", "message"), [([], "which group?"), (["polcy"], "there is no group 'polcy'. Did you mean policy?")]
)
def test_help_of_an_unknown_group_is_refused_with_the_known_groups(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        show_group(argv)
    assert str(refusal.value).startswith(message)
    assert "experiment, hardware, model" in str(refusal.value)


def test_show_metrics_names_every_metric_with_unit_meaning_and_formula() -> None:
    text = show_group(["metrics"])
    assert max(map(len, text.splitlines())) <= 110
    assert "latency/ttft_s/{mean,median,p90,p99}  (s, lower is better)" in text
    assert "    Accepted drafts over verified drafts. Formula: drafts_accepted / drafts_verified" in text
    assert all(metric.key in text for metric in METRICS)
    assert [line.split()[0] for line in show_group(["metrics", "slo", "class"]).splitlines() if line[0] != " "] == [
        "throughput/goodput_tokens_per_s", "throughput/slo_violation_rate", "slo/*/requests", "slo/*/violation_rate",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no metric has latency and qality"):
        show_group(["metrics", "latency", "qality"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.mark.parametrize("argv", [("--help",), ("-h",), ("+policy=sled", "--help")])
def test_help_works_without_a_policy(run: Callable[..., tuple[int, str, str]], argv: tuple[str, ...]) -> None:
    code, out, _ = run(*argv)
    assert (code, out.startswith("usage: python -m pipeline +policy=NAME")) == (0, True)


@pytest.mark.parametrize("command", ["cache", "results", "sweep", "trace", "report", "speeds", "doctor", "show", "ui"])
@pytest.mark.parametrize("words", [("--help",), ("list", "-h")])
def test_each_command_says_how_it_is_used(
    run: Callable[..., tuple[int, str, str]], command: str, words: tuple[str, ...]
) -> None:
    code, out, err = run(command, *words)
    assert (code, err) == (0, "")
    assert f"python -m pipeline {command} " in out


@pytest.mark.parametrize(("word", "near"), [("help", ""), ("reslts", " Did you mean results?")])
def test_a_first_word_that_is_no_command_is_said_to_be_none(
    run: Callable[..., tuple[int, str, str]], word: str, near: str
) -> None:
    code, out, err = run(word, "list")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: there is no command '{word}'.{near} There are cache, show, results")
    assert "`python -m pipeline --help`" in err


def test_show_refuses_a_folder_that_is_not_there(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("show", "policy", "--config-dir", "/nope")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no configuration folder /nope")


def test_show_prints_the_choices_of_a_group(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("show", "runtime")
    assert (code, [line.split()[0] for line in out.splitlines()[:4]]) == (0, ["emulated", "grpc", "local", "simulated"])
    code, _, err = run("show", "runtim")
    assert (code, err.startswith("error: there is no group 'runtim'. Did you mean runtime?")) == (2, True)
