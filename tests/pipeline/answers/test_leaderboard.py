"""A board of cells whose records are made by hand."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.answers.asked import Asked
from pipeline.answers.candidates import Candidate
from pipeline.answers.cell import CellResult
from pipeline.answers.evaluation import Evaluator
from pipeline.answers.leaderboard import Leaderboard
from pipeline.answers.leaderboard_report import Board, Setting, SettingResult, board_parts, notes, overall_table
from pipeline.answers.percentiles import estimate_percentile
from pipeline.answers.rows import COLUMNS, SERVICE, Row, is_tie, rows_table
from pipeline.errors import ConfigError
from pipeline.report.estimate import pool, prompt_counts
from pipeline.report.export.significance import judge
from pipeline.report.mlflow_store import Tracking
from pipeline.report.plan import PlannedStage
from pipeline.report.records import Records
from pipeline.report.statistics import ConfidenceInterval, percentile
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

    def planned_stages(
        self, cells: Sequence[Sequence[str]], only_lossless: bool = False
    ) -> tuple[list[PlannedStage], dict[tuple[str, ...], str]]:
        return [], self.build_inputs(cells, only_lossless)

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
    evaluator, policies, plan_only = WrittenEvaluator(folder), options.get("policies", ()), options.get("plan", False)
    question.answer(Asked(evaluator, ("seed=0",), policies, folder, Tracking("none"), plan_only, out=out))
    return out.getvalue()


def cells(folder: Path, setting: str) -> dict[tuple[str, str], dict[str, str]]:
    """The setting's cells by policy and metric."""
    text = (folder / "leaderboard" / f"{setting}.csv").read_text(encoding="utf-8")
    return {(one["label policy"], one["metric"] or one["column"]): one for one in csv.DictReader(text.splitlines())}


def served(folder: Path) -> set[tuple[str, str]]:
    names = [path.stem for path in (folder / "leaderboard").glob("*.csv")]
    return {(name, policy) for name in names for policy, _ in cells(folder, name)}


def test_a_board_has_each_policy_in_each_setting_and_says_what_is_missing(tmp_path: Path) -> None:
    text = ask(board(), tmp_path)
    assert served(tmp_path) == {
        ("near", "cloud_centric"), ("near", "sled"), ("near", "wisp"), ("far", "cloud_centric"), ("far", "sled"),
    }  # fmt: skip
    assert "without hat" in text
    assert "this testbed has no tiers" in text
    assert "compares cloud_centric, sled only" in text


def test_words_of_one_policy_are_said_and_reach_its_cells_in_that_setting_alone(tmp_path: Path) -> None:
    known = ("workload.devices=3",)
    question = replace(board(), settings={name: replace(one, own={"sled": known} if name == "far" else {})
                                          for name, one in board().settings.items()})  # fmt: skip
    served_words: list[tuple[str, ...]] = []

    class Listening(WrittenEvaluator):
        def evaluate(self, name: str, cells: Sequence[Sequence[str]]) -> list[CellResult]:
            served_words.extend(tuple(words) for words in cells)
            return super().evaluate(name, cells)

    out = StringIO()
    question.answer(Asked(Listening(tmp_path), ("seed=0",), (), tmp_path, Tracking("none"), out=out))
    having = [set(words) for words in served_words if known[0] in words]
    assert having
    assert all({"network=lte", "policy=sled"} <= words for words in having)
    assert "sled there" in out.getvalue()


def test_words_that_every_setting_replaces_are_noted(tmp_path: Path) -> None:
    out = StringIO()
    given = ("network=lan", "seed=9", "workload.devices=3")
    board().answer(Asked(WrittenEvaluator(tmp_path), given, (), tmp_path, Tracking("none"), out=out))
    assert "note: network=lan, seed=9: of no effect here, since every cell sets the same itself" in out.getvalue()
    assert "note" not in ask(board(), tmp_path)


def stars(text: str, policy: str, setting: str) -> int:
    """Stars in the row of a policy below the title of a setting."""
    rows = text[text.index(f"{setting} (") :].splitlines()
    return next(line for line in rows if line.startswith(policy)).count("*")


def test_stars_mark_the_best_and_what_is_not_significantly_worse(tmp_path: Path) -> None:
    text = ask(board(), tmp_path)
    assert stars(text, "cloud_centric", "Near") == stars(text, "sled", "Near") > 0  # the same records
    assert stars(text, "wisp", "Near") < stars(text, "sled", "Near")  # three times as slow, on every prompt


def test_a_lossy_policy_is_compared_with_lossy_ones_alone(tmp_path: Path) -> None:
    text = ask(replace(board(), add=("lossy",)), tmp_path)
    found = cells(tmp_path, "near")
    assert stars(text, "lossy", "Near") == 0  # the fastest by far, of a kind without another
    assert stars(text, "cloud_centric", "Near") > 0
    assert found["cloud_centric", "front"]["text"] == found["lossy", "front"]["text"] == "yes"


def test_a_named_policy_joins_and_named_ones_restrict_the_board(tmp_path: Path) -> None:
    joined = replace(board(), policies=("sled",), add=("cloud_centric",))
    ask(joined, tmp_path)
    assert {policy for _, policy in served(tmp_path)} == {"sled", "cloud_centric"}
    ask(board(), tmp_path, policies=("sled",))
    assert {policy for _, policy in served(tmp_path)} == {"sled"}


def test_a_setting_may_have_policies_that_the_board_has_not(tmp_path: Path) -> None:
    ask(replace(board(), policies=("wisp",)), tmp_path)
    assert served(tmp_path) == {("near", "wisp"), ("far", "cloud_centric"), ("far", "sled")}


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
    with pytest.raises(ConfigError, match="cells are more than 1200"):
        ask(replace(board(), seeds=tuple(range(400))), tmp_path)
    with pytest.raises(ValueError, match="there are near, far"):
        replace(board(), named_settings=("nearer",))
    alone = {name: replace(setting, only=("wisp",)) for name, setting in board().settings.items()}
    with pytest.raises(ConfigError, match=r"no setting of near, far compares sled; name other settings"):
        ask(replace(board(), settings=alone), tmp_path, policies=("sled",))
    assert not (tmp_path / "leaderboard").exists()


def test_intervals_enclose_the_value_and_a_quality_has_none(tmp_path: Path) -> None:
    write_artifact(tmp_path / "a", "sled", 1.0)
    metrics = summarise(Records.read(tmp_path / "a")).metrics()
    row = Row(Candidate("sled"), (CellResult((), metrics, str(tmp_path / "a"), "sled", True),), {"quality/mean": 0.5})
    table = rows_table("near", "Near", [row], remarks={"breaks": ["late"]})
    found = dict(zip([column.metric for column in table.columns], table.rows[0].cells, strict=True))
    assert {"latency/ttft_s/p90", "latency/tbt_s/mean", SERVICE, "quality/mean"} <= found.keys() <= {*COLUMNS, ""}
    for key in ("latency/ttft_s/p90", "latency/tbt_s/mean", SERVICE):
        cell = found[key]
        assert cell.value is not None
        assert cell.low is not None
        assert cell.high is not None
        assert cell.low <= cell.value <= cell.high
        assert cell.low < cell.high
    assert (found["quality/mean"].value, found["quality/mean"].low) == (0.5, None)
    assert (found[""].text, table.rows[0].num_requests) == ("late", 12)


def test_a_percentile_is_the_mean_of_the_seeds_own_ones(tmp_path: Path) -> None:
    """Seeds far apart: the percentile of all their requests together would be the slower seed's."""
    cells = []
    for seed, slower in enumerate((1.0, 10.0)):
        write_artifact(tmp_path / str(seed), "sled", slower)
        metrics = summarise(Records.read(tmp_path / str(seed))).metrics()
        cells.append(CellResult((), metrics, str(tmp_path / str(seed)), "sled", True))
    table = rows_table("near", "Near", [Row(Candidate("sled"), tuple(cells))])
    ttft = next(cell for cell, column in zip(table.rows[0].cells, table.columns, strict=True) if "p90" in column.metric)
    first, second = (1000 * cell.metrics["latency/ttft_s/p90"] for cell in cells)
    assert ttft.value == pytest.approx((first + second) / 2)
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low < first < ttft.value < second < ttft.high  # two seeds that differ say little
    assert ttft.by_seed == pytest.approx({"0": first, "1": second})


def test_an_empty_board_is_a_heading_and_the_reasons() -> None:
    empty = Board((), {("Near", "hat"): "no tiers"})
    found = board_parts(empty, tuple(notes(empty, "command", 1, 6)))
    assert found[0] == "leaderboard"
    assert any("no tiers" in str(part) for part in found)


def test_the_page_shows_counts_as_they_are_and_sorts_by_their_numbers(tmp_path: Path) -> None:
    ask(board(), tmp_path)
    text = (tmp_path / "leaderboard" / "leaderboard.html").read_text(encoding="utf-8")
    assert '<td data-sort="2.0">2</td>' in text  # on the front of both settings
    assert re.search(r'<td data-sort="1\.0">1\.00 \(1\.00 to 1\.00\)</td>', text)


def test_rows_that_are_alike_are_all_the_best_and_a_row_without_rivals_wins_nothing(tmp_path: Path) -> None:
    """A lone row counted as on the front, fastest and cheapest, which no comparison says."""
    question = replace(board(), policies=("cloud_centric", "sled"))
    alike = SettingResult("near", question.settings["near"], tuple(rows(tmp_path, ("cloud_centric", "sled"))))
    alone = SettingResult("near", question.settings["near"], tuple(rows(tmp_path, ("wisp",))))
    assert [alike.is_best(place, SERVICE) for place in (0, 1)] == [True, True]
    assert not alone.is_best(0, SERVICE)
    rivals, lone = (overall_table(Board((result,), {})).rows for result in (alike, alone))
    assert [row[3:6] for row in rivals] == [("1", "1", "1"), ("1", "1", "1")]
    assert [row[3:6] for row in lone] == [("0", "0", "0")]


def rows(folder: Path, policies: Sequence[str]) -> Iterator[Row]:
    evaluator = WrittenEvaluator(folder)
    for policy in policies:
        yield Row(Candidate(policy), tuple(evaluator.evaluate("", [(f"policy={policy}", "seed=0")])))


TTFT_P90 = "latency/ttft_s/p90"


def by_prompt(*values: Sequence[float | None]) -> Any:
    """Prompts, each with requests of these times to the first token."""
    return {str(place): [SimpleNamespace(ttft_s=one) for one in own] for place, own in enumerate(values)}


def test_the_interval_of_a_percentile_is_student_s_over_seeds() -> None:
    """Seeds of which each has one request: only the seeds vary. t of 5 degrees of freedom is 2.571."""
    values = [1.0, 2.0, 4.0, 7.0, 11.0, 16.0]
    seeds = [estimate_percentile(TTFT_P90, value, str(value), by_prompt([value])) for value in values]
    found = pool(seeds)
    assert found is not None
    assert found.interval is not None
    half = 2.571 * stdev(values) / len(values) ** 0.5
    assert (found.interval.high - found.interval.low) / 2 == pytest.approx(half, rel=0.06)
    assert seeds[0].interval == ConfidenceInterval(1.0, 1.0, 1.0)


def test_a_resampled_percentile_is_that_of_the_requests_of_the_drawn_prompts() -> None:
    own = [[3.0, 1.0], [2.0], [None, 9.0], []]
    (resamples,) = estimate_percentile(TTFT_P90, 7.2, "", by_prompt(*own)).resamples.values()
    for counts, value in zip(prompt_counts(resamples.prompts)[:50], resamples.values[:50], strict=True):
        drawn = [one for times, number in zip(own, counts, strict=True) for one in int(number) * times]
        ranked = sorted(one for one in drawn if one is not None)
        assert value == pytest.approx(percentile(ranked, 0.9)) if ranked else math.isnan(value)


def test_a_percentile_without_records_has_no_interval() -> None:
    assert estimate_percentile(TTFT_P90, 1.0, "0", {}).interval is None
    assert estimate_percentile(TTFT_P90, 1.0, "0", by_prompt([None])).interval is None


def test_a_percentile_that_does_not_differ_from_the_best_is_a_tie(tmp_path: Path) -> None:
    """The legend says so of every column; percentiles had no test."""
    found = []
    for policy, slower in (("sled", 1.0), ("wisp", 1.0001), ("hat", 3.0)):
        for seed in range(3):
            write_artifact(tmp_path / f"{policy}{seed}", policy, slower * (1 + 0.001 * ((seed + len(found)) % 3)))
        cells = [CellResult((), summarise(Records.read(folder)).metrics(), str(folder), policy, True)
                 for folder in sorted(tmp_path.glob(f"{policy}*"))]  # fmt: skip
        found.append(Row(Candidate(policy), tuple(cells)))
    table = rows_table("near", "Near", found, ["own"] * 3)
    column = next(place for place, one in enumerate(table.columns) if one.metric == TTFT_P90)
    assert [is_tie(judge(table), place, column) for place in range(3)] == [True, True, False]


def test_a_setting_or_seed_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^leaderboard\.in has 'near' twice"):
        replace(board(), named_settings=("near", "far", "near"))
    with pytest.raises(ValueError, match=r"^leaderboard\.seeds has 0 twice"):
        replace(board(), seeds=(0, 0))


def test_a_board_of_no_requests_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leaderboard\.requests is 0; each cell serves 1 request or more"):
        replace(board(), requests=0)


def test_a_board_names_the_whole_command_that_writes_it(tmp_path: Path) -> None:
    out, given = StringIO(), ("+experiment=leaderboard", "+policy=sled", "leaderboard.seeds=[0]")
    board().answer(Asked(WrittenEvaluator(tmp_path), (), (), tmp_path, Tracking("none"), out=out, given=given))
    page = (tmp_path / "leaderboard" / "leaderboard.md").read_text(encoding="utf-8")
    assert "python -m pipeline +experiment=leaderboard +policy=sled 'leaderboard.seeds=[0]'" in page


def test_a_plan_says_what_is_left_out_and_of_nothing_why(tmp_path: Path) -> None:
    text = ask(board(), tmp_path, plan=True)
    assert text.endswith("without hat in Near: this testbed has no tiers\nthen 10 cells of 6 requests\n")
    with pytest.raises(ConfigError, match=r"^leaderboard: no cell can be served: this testbed has no tiers$"):
        ask(board(), tmp_path, plan=True, policies=("hat",))
