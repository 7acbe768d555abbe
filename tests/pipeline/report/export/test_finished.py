"""From the folder of a sweep or a run to its page, LaTeX, CSV and figures."""

import csv
import io
import json
import re
import shutil
import subprocess
import weakref
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from pipeline.command import report
from pipeline.errors import UserError
from pipeline.report.export import page as html_page
from pipeline.report.export import tables, timeline
from pipeline.report.export.figures import WIDTH_IN
from pipeline.report.export.finished import FinishedError, read_finished
from pipeline.report.export.kinds import check_runs, parse_kinds
from pipeline.report.export.significance import judge
from pipeline.report.export.timeline import choose_requests, read_time_lines, svg
from pipeline.report.job_result import JobResult
from pipeline.report.prompt_sums import requests_by_prompt
from pipeline.report.records import Records, RequestRecord
from pipeline.report.results.kept import results_folder
from pipeline.report.summary import summarise
from pipeline.report.sweep_note import SweepNote, read_note
from tests.pipeline.report.serve_artifact import drawn

EXHIBIT = {
    "_target_": "pipeline.report.exhibit.Exhibit",
    "title": "Fig. 1: what a budget buys",
    "rows": {"label": "{policy} {policy.offload.budget}", "pool_over": "seed"},
    "columns": [{"name": "quality"}, {"name": "TBT, ms", "metric": "latency/tbt_s/mean", "scale": 1000}],
    "reported": {"synera 0.8": {"quality": 0.7}},
    "figure": {"x": "{policy.offload.budget}", "y": ["quality", "TBT, ms"], "series": "{policy}"},
    "claims": [{"statement": "0.8 is better", "row": "synera 0.8", "baseline": "synera 0.2", "metric": "quality",
                "relation": "above"}],
    "deviations": ["the pair is <ours>"],
}  # fmt: skip
SWEPT = {"+policy": "synera", "policy.offload.budget": "0.2,0.8", "seed": "0,1"}


def finished(folder: Path, artifact: Path, number: int | None, *overrides: str) -> None:
    records = Records.read(artifact)
    JobResult(
        "complete", number, records.meta.policy, overrides, "d1", str(artifact), False, "exact match",
        summarise(records).metrics(), revision="abc123",
    ).write(folder)  # fmt: skip
    (folder / ".hydra").mkdir()
    node = {"policy": {"name": "synera", "budget": overrides[1]}, "cloud": {"api_key": "s3cret"}}
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(node))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Budgets 0.2 and 0.8 with two seeds each; of a third budget one job failed, and one has not begun."""
    place = tmp_path_factory.mktemp("export")
    jobs = [(budget, seed) for budget in ("0.2", "0.8") for seed in ("0", "1")]
    for number, (budget, seed) in enumerate(jobs):
        right = 0.4 if budget == "0.2" else 0.95
        artifact = drawn(place / f"serve{number}", "synera", float(budget), n=30, right=right, seed=int(seed) + 1)
        finished(place / "sweep" / str(number), artifact, number, "+policy=synera", f"policy.offload.budget={budget}",
                 f"seed={seed}")  # fmt: skip
    folder = place / "sweep"
    lost = ("+policy=synera", "policy.offload.budget=0.9", "seed=0")
    JobResult("failed", 4, "synera", lost, error="out of memory").write(folder / "4")
    words = [["+policy=synera", f"policy.offload.budget={budget}", f"seed={seed}"] for budget, seed in jobs]
    command = ("--config-dir", "/home/me/conf", "-m", "seed=0,1", "outputs=/tmp/x", "tracking.uri=none")
    SweepNote(None, ("seed=0,1",), command, ".", [*words, list(lost), ["+policy=sled"]]).write(folder)
    return folder


def with_exhibit(sweep: Path, tmp_path: Path) -> Path:
    """A copy of the sweep as an experiment with an exhibit leaves it, without the failed job."""
    folder = tmp_path / "with_exhibit"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).symlink_to(sweep / str(number))
    hydra = {
        "overrides": {"task": []}, "runtime": {"choices": {}},
        "sweeper": {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", "params": SWEPT},
    }  # fmt: skip
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": hydra, "exhibit": EXHIBIT, "goal": "serve"}))
    note = read_note(sweep)
    assert note is not None
    SweepNote(None, (), ("+experiment=mine",), ".", note.jobs[:4]).write(folder)
    return folder


def test_a_sweep_becomes_a_table_that_marks_what_lacks(sweep: Path) -> None:
    found = read_finished(sweep)
    (table,) = found.tables
    assert [row.problem for row in table.rows] == ["", "", "", "", "failed: out of memory"]
    assert table.label_heads == ("budget", "seed")
    assert found.lacking == ("job 4 (budget=0.9, seed=0): failed: out of memory", "1 jobs have not begun: 5")
    quality = next(place for place, column in enumerate(table.columns) if column.metric == "quality/mean")
    assert [row.cells[quality].value for row in table.rows[:4]] == pytest.approx([0.4, 0.4, 29 / 30, 29 / 30])
    assert table.rows[0].cells[quality].low is not None


def test_a_named_baseline_is_what_rows_are_tested_against(sweep: Path) -> None:
    (table,) = read_finished(sweep, "0.2").tables
    assert table.against == {2: 0, 3: 1, 4: 0}
    assert ("baseline", "0.2") in table.notes
    with pytest.raises(FinishedError, match=r"baseline=7: no complete job .* differ in: 0\.2, 0, 1, 0\.8"):
        read_finished(sweep, "7")


def test_a_sweep_that_was_stopped_behind_its_baseline_is_reported(sweep: Path) -> None:
    """All that is complete is synera; the job that failed has no values."""
    (table,) = read_finished(sweep, "synera").tables
    assert table.against == {4: 0}
    assert len(table.rows) == 5


def test_a_sweep_of_which_every_job_is_the_baseline_has_no_tests(tmp_path: Path) -> None:
    for number, right in enumerate((0.4, 0.95)):
        artifact = drawn(tmp_path / f"serve{number}", "synera", n=30, right=right)
        finished(tmp_path / "sweep" / str(number), artifact, number, "+policy=synera", f"b={number}")
    SweepNote(jobs=[["+policy=synera", f"b={number}"] for number in range(2)]).write(tmp_path / "sweep")
    (table,) = read_finished(tmp_path / "sweep", "synera").tables
    assert judge(table).p_values == {}
    assert ("baseline", "every complete job is synera: there is nothing to compare it with") in table.notes


def test_a_job_without_records_is_compared_with_none(tmp_path: Path) -> None:
    for number, right in enumerate((0.4, 0.6, 0.9)):
        artifact = drawn(tmp_path / f"serve{number}", "synera", n=8, right=right)
        finished(tmp_path / "sweep" / str(number), artifact, number, "+policy=synera", f"b={number}")
    (artifact / "requests.parquet").unlink()
    SweepNote(jobs=[["+policy=synera", f"b={number}"] for number in range(3)]).write(tmp_path / "sweep")
    (table,) = read_finished(tmp_path / "sweep").tables
    assert [row.group for row in table.rows] == ["prompts of job 0", "prompts of job 0", "job 2, no records"]


def test_a_table_keeps_no_request_of_the_jobs_that_it_has_read(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Requests(dict[str, list[RequestRecord]]):
        """Unlike a dict, it can be watched."""

    left: list[int] = []
    read: list[weakref.ref[Requests]] = []

    def by_prompt(artifact: str | None) -> Requests:
        left.append(sum(one() is not None for one in read))
        found = Requests(requests_by_prompt(artifact))
        read.append(weakref.ref(found))
        return found

    rows = read_finished(sweep).rows
    monkeypatch.setattr(tables, "requests_by_prompt", by_prompt)
    tables.comparison_table(rows, "four jobs")
    assert left == [0, 0, 0, 0]


def test_an_exhibit_is_made_anew_from_the_jobs(sweep: Path, tmp_path: Path) -> None:
    found = read_finished(with_exhibit(sweep, tmp_path))
    table, jobs = found.tables
    assert (table.name, jobs.name) == ("exhibit", "comparison")
    assert [row.labels for row in table.rows] == [("synera 0.2",), ("synera 0.8",)]
    assert [(column.heading, column.better) for column in table.columns] == [
        ("quality", "higher"),
        ("TBT, ms", "lower"),
    ]
    cell = table.rows[1].cells[0]
    assert (dict(cell.by_seed), cell.reported) == ({"0": pytest.approx(29 / 30), "1": pytest.approx(29 / 30)}, 0.7)
    assert cell.low is not None
    assert cell.low < cell.value < cell.high


class Page(HTMLParser):
    """What a page refers to, and the ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_page_of_an_exhibit_is_whole_and_needs_no_network(sweep: Path, tmp_path: Path) -> None:
    found = read_finished(with_exhibit(sweep, tmp_path))
    text = html_page.html_page(found, ("median", "slowest"))
    page = Page(text)
    assert all(one.startswith("#") for one in page.references)
    assert {one.removeprefix("#") for one in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|<link|<iframe", text)
    sections = ("tables", "claims", "figures", "timelines", "configuration", "versions", "sources")
    assert [one for one in page.ids if one in sections] == list(sections)
    assert {table.name for table in found.tables} <= set(page.ids)
    assert "holds</td><td>0.8 is better" in text
    assert "the pair is &lt;ours&gt;" in text
    assert text.count("<figure>") == 2 + 4
    assert "median: request r" in text
    assert "what differs from job 0" in text
    assert "s3cret" not in text
    assert "api_key: &#x27;***&#x27;" in text
    assert "1.2 USD an hour of a chip (unverified: a test; 2026-11-22)" in text
    assert "abc123" in text


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium (Debian: apt-get install chromium)")
def test_a_browser_opens_the_page_without_a_network_and_sorts_its_table(sweep: Path, tmp_path: Path) -> None:
    text = html_page.html_page(read_finished(with_exhibit(sweep, tmp_path)), ("median",))
    click = "<script>document.querySelectorAll('#exhibit th')[2].click()</script></body>"
    (tmp_path / "page.html").write_text(text.replace("</body>", click), encoding="utf-8")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    table = done.stdout[done.stdout.index('id="exhibit"') :].partition("</table>")[0]
    assert 'aria-sort="ascending"' in table
    assert table.index("synera 0.2") < table.index("synera 0.8")
    assert done.stdout.count("<svg") == text.count("<svg")


def test_the_page_of_an_unfinished_sweep_says_what_lacks(sweep: Path) -> None:
    text = html_page.html_page(read_finished(sweep), ("median",))
    assert "4 of 6 jobs complete" in text
    assert "<li>job 4 (budget=0.9, seed=0): failed: out of memory</li>" in text


@pytest.mark.usefixtures("every_kind")
def test_the_command_writes_the_kinds_and_says_what_lacks(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(sweep), "export=latex,csv,figures,html"]) == 0
    said = capsys.readouterr().out
    assert "4 of 6 jobs have results; they are printed, the others are marked:" in said
    assert "  1 jobs have not begun: 5" in said
    made = sorted(path.name for path in (sweep / "export").iterdir())
    assert {"comparison.tex", "comparison.csv"} < set(made)
    figures = [name for name in made if name.startswith("tradeoff-")]
    assert len(figures) == 2 * 4
    assert (sweep / "report.html").stat().st_size > 50_000
    lines = list(csv.DictReader(io.StringIO((sweep / "export" / "comparison.csv").read_text(encoding="utf-8"))))
    own = json.loads((sweep / "2" / "job.json").read_text())["metrics"]
    tbt = next(line for line in lines if line["metric"] == "latency/tbt_s/mean" and line["label budget"] == "0.8")
    assert float(tbt["value"]) == pytest.approx(1000 * own["latency/tbt_s/mean"], rel=1e-12)
    text = (sweep / "export" / "comparison.tex").read_text(encoding="utf-8")
    assert r"\multicolumn" in text
    assert "python -m pipeline --config-dir conf -m seed=0,1; code" in text  # that repeats it, and no path of a machine


@pytest.mark.usefixtures("every_kind")
def test_figures_are_vectors_with_fonts_one_column_wide(sweep: Path) -> None:
    report.main([str(sweep), "export=figures"])
    files = [*(sweep / "export").glob("*.pdf")]
    assert files
    for path in files:
        data = path.read_bytes()
        assert data.startswith(b"%PDF")
        assert b"/FontFile2" in data
        assert b"/Type3" not in data
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)
        assert box is not None
        assert float(box[1]) == pytest.approx(72 * WIDTH_IN, abs=0.1)
    for path in (sweep / "export").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "<text" not in text  # outlines: no reader needs the font
        assert "<image" not in text


@pytest.mark.usefixtures("every_kind")
def test_a_run_has_its_metrics_latency_and_time_lines(sweep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished(folder, Path(read_finished(sweep).rows[2].result.artifact or ""), None, "+policy=synera", "b=1")
    report.main([str(folder), "export=html,figures,csv"])
    assert sorted(path.name for path in (folder / "export").glob("*.svg")) == [
        "latency-tbt-s.svg",
        "latency-ttft-s.svg",
    ]
    assert "<details open><summary>synera" in (folder / "report.html").read_text(encoding="utf-8")
    with (folder / "export" / "metrics.csv").open(encoding="utf-8") as file:
        assert "TTFT median" in {line["label metric"] for line in csv.DictReader(file)}


def test_a_run_whose_time_lines_are_damaged_has_a_page_without_them(sweep: Path, tmp_path: Path) -> None:
    folder, artifact = tmp_path / "run", tmp_path / "artifact"
    shutil.copytree(read_finished(sweep).rows[2].result.artifact or "", artifact)
    timeline = artifact / "timeline.parquet"
    whole = timeline.read_bytes()
    timeline.write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :])
    finished(folder, artifact, None, "+policy=synera", "b=1")
    report.main([str(folder), "export=html"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<details open><summary>synera" not in page
    assert "TTFT" in page


def test_folders_without_results_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FinishedError, match="there is no folder"):
        read_finished(tmp_path / "none")
    with pytest.raises(FinishedError, match=r"neither sweep\.json nor job\.json"):
        read_finished(tmp_path)
    inner = tmp_path / "2026-01-01" / "10-00-00"
    inner.mkdir(parents=True)
    SweepNote(jobs=[[]]).write(inner)
    with pytest.raises(FinishedError, match=r"Below it lies .*10-00-00"):
        read_finished(tmp_path)
    with pytest.raises(FinishedError, match="no job of this sweep has begun"):
        read_finished(inner)
    JobResult("failed", 0, error="too large").write(inner / "0")
    with pytest.raises(FinishedError, match=r"none of its 1 jobs has a result \(failed: too large\)"):
        read_finished(inner)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"there is no 'pdf'\. Give one or more of latex: .* html: "):
        parse_kinds("latex,pdf")
    with pytest.raises(UserError, match="nothing is named"):
        parse_kinds("")
    assert parse_kinds("[csv,latex,csv]") == ("csv", "latex")
    with pytest.raises(UserError, match="stage=plan leaves none"):
        check_runs(["+policy=synera", "stage=plan"])
    check_runs(["+policy=synera", "stage=all"])
    with pytest.raises(UserError, match="there is no option foo"):
        report.main(["folder", "foo=1"])
    with pytest.raises(UserError, match="0 folders are named"):
        report.main([])


def test_a_kept_result_is_printed_without_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = results_folder() / "beyond" / "delay_transition.json"
    report.main([str(file), f"out={tmp_path}"])
    text = (tmp_path / "beyond-delay_transition.tex").read_text(encoding="utf-8")
    assert r"\mathbf" in text
    assert r"^{\dagger}" not in text
    assert "no row is tested" in text
    kept = json.loads(file.read_text(encoding="utf-8"))["exhibit"]["rows"]
    with (tmp_path / "beyond-delay_transition.csv").open(encoding="utf-8") as lines:
        assert len(list(csv.DictReader(lines))) == sum(len(row["columns"]) for row in kept)
    with pytest.raises(FinishedError, match="For figures name the folder"):
        report.main([str(file), "export=figures"])


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "seed=1.json"
    file.write_bytes((results_folder() / "beyond" / "delay_transition.json").read_bytes())
    report.main([str(file), f"out={tmp_path}"])
    assert len(list(tmp_path.glob("*.tex"))) == 1


def test_requests_are_chosen_by_rank_or_name(sweep: Path) -> None:
    artifact = Path(read_finished(sweep).rows[2].result.artifact or "")
    records = Records.read(artifact)
    took = sorted((one.end_to_end_s or 0.0, one.request) for one in records.requests)
    chosen = choose_requests(records, ("median", "slowest", "fastest", took[-1][1], took[3][1]))
    assert [one.request for one in chosen.values()] == [took[14][1], took[-1][1], took[0][1], took[3][1]]
    with pytest.raises(UserError, match="requests=nobody: no request has this name"):
        choose_requests(records, ["nobody"])
    (line,) = read_time_lines(artifact, records, ["slowest"])
    assert line.source.startswith("time line of the run")
    text = svg(line)
    assert text.count("<rect") >= len(line.spans) / 2
    assert "cloud verifies" in text
    assert text.count("<title>") >= len({*line.request.token_times_s})


@pytest.mark.parametrize("until_s", [0.00007, 0.0045, 0.02, 0.45, 0.99, 3.3, 70.0])
def test_the_ticks_of_a_time_line_have_labels_of_their_own(until_s: float) -> None:
    labels = re.findall(r"[\d.]+ m?s", "".join(timeline._axis(until_s, 1.0, 10.0)))
    assert len(labels) > 4
    assert len(set(labels)) == len(labels)
