"""A CSV of one's own timings: read by line, fitted as any profile, refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.hardware.fitted_latencies import load_fitted_latencies
from serving.hardware.latency import ForwardLoad
from tests.support.conf_files import architecture
from tests.training.latency.made_up_timings import TRUE
from training.latency.grid import ProfilingOptions
from training.latency.stages import profile_from_csv
from training.latency.timings_file import read_timings

HEADER = "model,num_tokens,interactions,cached_tokens,latency_s"
ARCHITECTURES = (architecture("llama2_13b"),)


def text(configurations: int = 20, repeats: int = 2) -> str:
    lines = [f"{HEADER},head_tokens"]
    for i in range(configurations):
        num_tokens, cached, head_tokens = 1 + i * 7 % 50, i * i % 13 * 10, 1 + i * 3 % 5 if i % 4 else 0
        head_tokens = min(num_tokens, head_tokens)
        load = ForwardLoad(8, num_tokens, (cached + num_tokens) * num_tokens, cached, head_tokens)
        lines += [f"llama2_13b,{num_tokens},{load.interactions},{cached},{TRUE.seconds(load)},{head_tokens}"] * repeats
    return "\n".join(lines) + "\n"


def written(folder: Path, content: str) -> Path:
    file = folder / "timings.csv"
    file.write_text(content, encoding="utf-8")
    return file


def test_lines_that_agree_are_repeats_and_some_configurations_are_held_out(tmp_path):
    timings = read_timings(written(tmp_path, text(40, 3)), ARCHITECTURES, 0)["llama2_13b"]
    assert [len(timing.runs) for timing in timings] == [3] * 40
    assert sum(timing.shape.held_out for timing in timings) == 12
    assert {timing.shape.category for timing in timings} == {"compute-bound", "memory-bound", "mixed"}


def test_a_profile_of_a_timings_file_is_loaded_for_serving(tmp_path, fresh):
    out = fresh("out")
    file = written(tmp_path, text(40))
    profile_from_csv(
        out, file=file, architectures=ARCHITECTURES, measured_on="a toaster", options=ProfilingOptions(bootstraps=100)
    )
    fits = load_fitted_latencies(out)
    found = fits.latencies["llama2_13b"]
    assert found.layers == 40
    assert (found.a_s, found.c_s) == (pytest.approx(TRUE.a_s, rel=1e-3), pytest.approx(TRUE.c_s, rel=1e-3))
    assert fits.source == "timings of one's own (a toaster)"
    assert found.source.startswith("measured: a toaster: llama2_13b")
    names = {path.name for path in out.rglob("*.*")}
    assert names >= {"latency.json", "profile.json", "profile.txt", "metrics.json", "chip.yaml"}
    plots = ("llama2_13b_predicted", "llama2_13b_residuals")
    assert names >= {f"{plot}.png" for plot in plots}
    assert "quiet runs not known" in (out / "profile.txt").read_text()


def test_head_tokens_and_category_may_be_left_out_or_given(tmp_path):
    lines = [f"llama2_13b,{i + 1},{(i + 1) ** 2},0,0.0{i + 10}" for i in range(20)]
    timings = read_timings(written(tmp_path, "\n".join([HEADER, *lines])), ARCHITECTURES, 0)["llama2_13b"]
    assert {(load.head_tokens, load.layers) for timing in timings for load in timing.loads} == {(0, 40)}
    named = [f"{HEADER},category", *(f"{line},{'slow' if i else 'fast'}" for i, line in enumerate(lines))]
    timings = read_timings(written(tmp_path, "\n".join(named)), ARCHITECTURES, 0)["llama2_13b"]
    assert {timing.shape.category for timing in timings} == {"slow", "fast"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("llama2_7b,1,1,0,0.1", "line 3: model is 'llama2_7b'; the architectures of this profile are llama2_13b"),
        ("llama2_13b,0,0,0,0.1", "line 3: num_tokens is 0; a forward has at least one new token"),
        ("llama2_13b,2.5,9,0,0.1", "line 3: num_tokens is '2.5'; a whole number, 0 or more, is wanted"),
        ("llama2_13b,2,9,-1,0.1", "line 3: cached_tokens is '-1'; a whole number"),
        ("llama2_13b,9,3,0,0.1", "line 3: interactions is 3, below num_tokens=9"),
        ("llama2_13b,2,4,0,fast", "line 3: latency_s is 'fast'; seconds, more than 0, are wanted"),
        ("llama2_13b,2,4,0,nan", "line 3: latency_s is 'nan'; seconds"),
        ("llama2_13b,2,4,0,0", "line 3: latency_s is '0'; seconds"),
        ("llama2_13b,2,4,0", "line 3: has more or fewer values than the header has columns"),
        ("llama2_13b,2,4,0,0.1,7", "line 3: has more or fewer values than the header has columns"),
        ('llama2_13b,2,4,0,"0.1', "not a CSV file in UTF-8"),
    ],
)
def test_a_malformed_line_is_refused_by_its_number(tmp_path, line, message):
    content = f"{HEADER}\nllama2_13b,1,1,0,0.1\n{line}\n"
    with pytest.raises(ValueError, match=rf"timings\.csv.*{message}"):
        read_timings(written(tmp_path, content), ARCHITECTURES, 0)


def test_more_head_tokens_than_tokens_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"line 2: head_tokens is 3, above num_tokens=2"):
        read_timings(written(tmp_path, f"{HEADER},head_tokens\nllama2_13b,2,4,0,0.1,3\n"), ARCHITECTURES, 0)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("model,num_tokens,interactions,latency_s", "line 1: the header lacks cached_tokens"),
        (f"{HEADER},nonsense", "line 1: the header has nonsense; the columns are model, num_tokens"),
        (f"{HEADER},num_tokens", "line 1: the header has a column twice"),
        ("", "line 1: the header lacks model, num_tokens, interactions, cached_tokens, latency_s"),
    ],
)
def test_a_header_of_another_kind_is_refused(tmp_path, header, message):
    with pytest.raises(ValueError, match=message):
        read_timings(written(tmp_path, header + "\n"), ARCHITECTURES, 0)


def test_too_few_configurations_are_refused_with_their_number(tmp_path):
    with pytest.raises(ValueError, match=r"has 17 different configurations of llama2_13b; 18 are needed, 12 to fit"):
        read_timings(written(tmp_path, text(17)), ARCHITECTURES, 0)
    assert read_timings(written(tmp_path, text(18)), ARCHITECTURES, 0)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "timings.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"timings\.csv is not a CSV file in UTF-8"):
        read_timings(file, ARCHITECTURES, 0)


def test_sessions_are_counted_if_the_file_has_them(tmp_path):
    rows = [f"llama2_13b,{i + 2},{9 * i + 99},{i},0.01,{1 + i % 2}" for i in range(20)]
    timings = read_timings(written(tmp_path, "\n".join([f"{HEADER},sessions", *rows])), ARCHITECTURES, 0)["llama2_13b"]
    assert [timing.loads[0].extra_sessions for timing in timings] == [i % 2 for i in range(20)]
    with pytest.raises(ValueError, match=r"line 2: sessions is 3; 1 to num_tokens=2 is wanted"):
        read_timings(written(tmp_path, f"{HEADER},sessions\nllama2_13b,2,9,0,0.01,3\n"), ARCHITECTURES, 0)
