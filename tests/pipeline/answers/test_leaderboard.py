"""A board of cells whose records are made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pipeline.answers import leaderboard_report
from pipeline.answers.asked import Asked
from pipeline.answers.board import Board, Setting
from pipeline.answers.cell import CellResult
from pipeline.answers.evaluation import Evaluator
from pipeline.answers.leaderboard import Leaderboard
from pipeline.errors import ConfigError
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import Records, read_requests
from pipeline.report.summary import summarise
from tests.pipeline.report import serve_artifact

SLOWER = {"cloud_centric": 1.0, "sled": 1.0, "wisp": 3.0, "lossy": 0.1}


def write_artifact(folder: Path, policy: str, slower: float) -> None:
    """Twelve requests, each with tokens that take `slower` times as long as those of another policy."""
    rows = []
    for number in range(12):
        step_s = slower * (0.1 + 0.01 * number)
        seen_s = [step_s * (place + 1) for place in range(5)]
        origins = ["cloud"] * 5
        rows.append(serve_artifact.request(f"r{number}", origins, seen_s, cloud_usd=1e-6, cloud_chip_s=0.1))
    serve_artifact.write(folder, rows, policy=policy)


class WrittenEvaluator(Evaluator):
    """Serves a cell as an artifact of its policy; `hat` cannot be served."""

    def __init__(self, folder: Path) -> None:
        super().__init__(workers=None)  # type: ignore[arg-type]
        self.folder = folder

    def build_inputs(self, cells: Sequence[Sequence[str]], only_lossless: bool = False) -> dict[tuple[str, ...], str]:
        return {tuple(words): "this testbed has no tiers" for words in cells if "policy=hat" in words}

    def evaluate(self, name: str, cells: Sequence[Sequence[str]]) -> list[CellResult]:
        return [self._serve(tuple(words)) for words in cells]

    def _serve(self, words: tuple[str, ...]) -> CellResult:
        given = dict(word.split("=", 1) for word in words)
        folder = self.folder / "_".join(value for value in given.values() if value.isalnum() or "_" in value)
        write_artifact(folder, given["policy"], SLOWER[given["policy"]])
        records = Records.read(folder)
        return CellResult(words, summarise(records).metrics(), str(folder), given["policy"], given["policy"] != "lossy")


def board() -> Leaderboard:
    settings = {
        "near": Setting("Near", ("network=wifi",)),
        "far": Setting("Far away", ("network=lte",), only=("cloud_centric", "sled")),
    }
    return Leaderboard(("cloud_centric", "sled", "wisp", "hat"), settings, (0, 1), 6)


def ask(question: Leaderboard, folder: Path, **options: Any) -> str:
    out = StringIO()
    question.answer(
        Asked(WrittenEvaluator(folder), ("seed=0",), options.get("policies", ()), folder, Tracking("none"), out=out)
    )
    return out.getvalue()


def records(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((folder / "leaderboard" / "leaderboard.json").read_text(encoding="utf-8"))
    return {(one["setting"], one["policy"]): one for one in found}


def test_a_board_has_each_policy_in_each_setting_and_says_what_is_missing(tmp_path: Path) -> None:
    text = ask(board(), tmp_path)
    assert records(tmp_path).keys() == {
        ("near", "cloud_centric"), ("near", "sled"), ("near", "wisp"), ("far", "cloud_centric"), ("far", "sled"),
    }  # fmt: skip
    assert "without hat" in text
    assert "this testbed has no tiers" in text
    assert "compares cloud_centric, sled only" in text


def test_stars_mark_the_best_and_what_is_not_significantly_worse(tmp_path: Path) -> None:
    ask(board(), tmp_path)
    best = {pair: leaderboard_report.SERVICE in one["best"] for pair, one in records(tmp_path).items()}
    assert best["near", "cloud_centric"]
    assert best["near", "sled"]  # the same records
    assert not best["near", "wisp"]  # three times as slow, on every prompt


def test_a_lossy_policy_is_compared_with_lossy_ones_alone(tmp_path: Path) -> None:
    ask(replace(board(), add=("lossy",)), tmp_path)
    found = records(tmp_path)
    assert leaderboard_report.SERVICE in found["near", "cloud_centric"]["best"]
    assert leaderboard_report.SERVICE in found["near", "lossy"]["best"]
    assert (found["near", "cloud_centric"]["front"], found["near", "lossy"]["front"]) == (True, True)


def test_a_named_policy_joins_and_named_ones_restrict_the_board(tmp_path: Path) -> None:
    joined = replace(board(), policies=("sled",), add=("cloud_centric",))
    ask(joined, tmp_path)
    assert {policy for _, policy in records(tmp_path)} == {"sled", "cloud_centric"}
    ask(board(), tmp_path, policies=("sled",))
    assert {policy for _, policy in records(tmp_path)} == {"sled"}


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        self.outside += [
            str(value) for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")
        ]


def test_the_page_is_one_file_with_a_table_for_each_setting(tmp_path: Path) -> None:
    ask(replace(board(), page=str(tmp_path / "page.md")), tmp_path)
    page = Links()
    page.feed((tmp_path / "leaderboard" / "leaderboard.html").read_text(encoding="utf-8"))
    assert page.outside == []
    assert page.tables == 4  # all settings, two of them, notes
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert written.startswith("# Leaderboard")
    assert "Far away" in written


def test_too_many_cells_and_unknown_settings_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cells are more than 600"):
        ask(replace(board(), seeds=tuple(range(200))), tmp_path)
    with pytest.raises(ValueError, match="there are near, far"):
        replace(board(), named_settings=("nearer",))
    assert not (tmp_path / "leaderboard").exists()


def test_intervals_enclose_the_value_and_shrink_with_more_prompts(tmp_path: Path) -> None:
    from pipeline.answers.intervals import measure, read_by_prompt

    write_artifact(tmp_path / "a", "sled", 1.0)
    by_prompt = read_by_prompt([str(tmp_path / "a")])
    metrics = summarise(Records.read(tmp_path / "a")).metrics()
    for key in ("latency/ttft_s/p90", "latency/ttft_s/mean", "latency/service_s_per_token/mean"):
        found = measure(key, metrics[key], by_prompt)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
    assert measure("throughput/tokens_per_s", 3.0, by_prompt).low is None
    assert len(by_prompt) == len({one.prompt_id for one in read_requests(tmp_path / "a")})


def test_an_empty_board_is_a_heading_and_the_reasons() -> None:
    found = leaderboard_report.board_report(
        Board({"near": Setting("Near", ())}, {"near": ()}, {("near", "hat"): "no tiers"}), "command", 1, 6
    )
    assert found.records == []
    assert any("no tiers" in str(part) for part in found.parts)
