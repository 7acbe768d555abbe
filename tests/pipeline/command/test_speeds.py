"""`python -m pipeline speeds`: from a benchmark's output to rows and their score."""

import re
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pipeline.command.main import main
from pipeline.command.named_objects import Library
from pipeline.command.speeds import WORDS, Given
from training.latency.published_speeds import COLUMNS

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "tests" / "training" / "latency" / "benchmarks"
LLAMA, SERVED = str(BENCHMARKS / "llama_bench.json"), str(BENCHMARKS / "vllm_serve.json")
MINE = (LLAMA, "chip=rtx_3090", "source=made up", "licence=CC0", "out=mine.csv")
RTX_4080 = """_target_: serving.hardware.chip.Chip
name: rtx_4080
default_mode: default
modes: {default: {fp16_tflops: 195, memory_gbps: 716.8}}
sources: {fp16_tflops: "unverified: a test's", memory_gbps: "unverified: a test's"}
"""


@cache
def project_library() -> Library:
    """Reading all files of conf/ takes longer than any test here."""
    return OPEN(None)


OPEN = Library.open
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `speeds` in a folder of its own: exit code, output, error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Library, "open", lambda folder: OPEN(folder) if folder else project_library())

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", "speeds", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(ended.value.code or 0), out, err

    return run


def test_rows_are_scored_and_stored_and_refusals_said(run: Run) -> None:
    code, out, _ = run(*MINE)
    assert code == 0
    assert "rtx_3090 llama_cpp llama3_8b int4 decode 1 x 1 behind 64" in out
    assert "decode      2         6.4 %" in out
    assert "1 refused" in out
    assert "llama_bench.json, record 5  pp512+tg128 mixes two kinds of forward" in out
    assert "4 rows, to mine.csv" in out
    assert "+experiment=clock clock.rows=[mine.csv]\n" in out
    assert len(Path("mine.csv").read_text().splitlines()) == 5


def test_stored_rows_are_scored_again_and_stored_once(run: Run) -> None:
    first = run(*MINE)[1].partition("1 refused")[0].rstrip()
    assert run("mine.csv") == (0, f"{first}\n", "")
    before = Path("mine.csv").read_bytes()
    code, _, err = run(*MINE)
    assert code == 2
    assert err.startswith("error: no row is left; nothing was written.")
    assert err.count("the file has this work already") == 4
    assert Path("mine.csv").read_bytes() == before


def test_without_out_nothing_is_written(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(SERVED, "chip=a100_80gb", "mode=default", "precision=fp16")
    assert code == 0
    assert "a100_80gb default vllm qwen2_5_7b fp16 decode 1 x 1 behind 1088" in out
    assert not list(tmp_path.iterdir())


def test_a_chip_of_ones_own_needs_its_peaks_only(run: Run) -> None:
    code, _, err = run(LLAMA, "chip=rtx_4080")
    assert code == 2
    assert "there is no 'rtx_4080' in hardware/chip" in err
    assert "the peaks fp16_tflops (dense) and memory_gbps from its datasheet" in err
    Path("lab/hardware/chip").mkdir(parents=True)
    Path("lab/hardware/chip/rtx_4080.yaml").write_text(RTX_4080)
    code, out, _ = run(LLAMA, *MINE[2:], "chip=rtx_4080", "--config-dir", "lab")
    assert code == 0
    assert "chip rtx_4080 has no figures for llama_cpp (it has: none)" in out
    assert "clock.rows=[mine.csv] clock.chips=[rtx_4080]" in out
    assert "--config-dir lab" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "usage: python -m pipeline speeds FILE"),
        ((LLAMA, "chop=rtx_3090"), "there is no 'chop'. Did you mean chip? usage:"),
        ((LLAMA, "chip=rtx_3090", "chip=a40"), "chip= is given twice; give it once. usage:"),
        ((LLAMA,), "the output does not say chip: chip=, a chip of conf/hardware/chip"),
        ((LLAMA, "chip=rtx_3090", "out=mine.csv"), "the output does not say source"),
        ((LLAMA, "chip=rtx_3090", "source=us", "out=mine.csv"), "the output does not say licence"),
        ((*MINE[:-1], "out=mine.json"), "out=mine.json: a file whose name ends with .csv is wanted"),
        ((*MINE[:-1], "out=nowhere/mine.csv"), "is no folder that can be written to"),
        ((LLAMA, "chip=rtx_3090", "architecture=llama9"), "there is no 'llama9' in model/architecture"),
        (("nothing.json", "chip=rtx_3090"), "there is no file nothing.json"),
        (("nothing.csv",), "nothing.csv: No such file"),
        (("mine.csv", "chip=rtx_3090"), "a file of rows (.csv) says all that is known"),
        ((LLAMA, "chip=rtx_3090", "--config-dir", "nope"), "there is no configuration folder"),
        ((LLAMA, "chip=jetson_agx_orin_64gb"), "in which power mode did it run?"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(run: Run, words: tuple[str, ...], message: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert not list(Path.cwd().iterdir())


def test_the_words_of_the_page_are_those_of_the_command() -> None:
    page = (ROOT / "docs" / "clock.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    python -m pipeline speeds ([^#\n]+)", page, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        assert Given.parse(shlex.split(line)).files
    assert [word for word in WORDS if f"`{word}=`" not in page and f" {word}=" not in page] == []


def test_a_file_without_a_row_is_said_to_have_none(run: Run) -> None:
    Path("mine.csv").write_text(f"{','.join(COLUMNS)}\n")
    assert run("mine.csv") == (2, "", "error: no row is in mine.csv, so there is nothing to score.\n")


def test_a_file_that_is_no_table_of_rows_is_not_added_to(run: Run) -> None:
    Path("mine.csv").write_text("a,b\n1,2\n")
    code, _, err = run(*MINE)
    assert code == 2
    assert "mine.csv, line 1: the columns are chip,mode" in err
    assert Path("mine.csv").read_text() == "a,b\n1,2\n"
