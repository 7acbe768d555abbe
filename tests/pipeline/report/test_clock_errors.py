"""The line that names a run's chips says how far off its clock is, by whatever was held out."""

import pytest

from pipeline.report.clock_errors import HeldOutError, read_errors, with_errors
from serving.hardware.chip import roofline
from tests.support.conf_files import architecture, chip, names

ERRORS = {
    ("orin", "transformers"): HeldOutError("decode", 3, 0.475),
    ("", "transformers"): HeldOutError("decode", 30, 0.42),
    ("", "vllm"): HeldOutError("batch", 3, 0.41),
}


def line(chip_name, software, evidence):
    return f"roofline of {chip_name} in mode 30W, tinyllama_1_1b, fp16, {software} ({evidence})"


@pytest.mark.parametrize(
    ("place", "evidence", "added"),
    [
        (("orin", "transformers"), "measured: fitted to 3 rows of 1 source, batch 1",
         "; with this processor held out 48 % off on 3 decodes"),
        (("orin", "transformers"), "measured: fitted to 9 rows, batch 1, 5 % off on held-out decodes", ""),
        (("nano", "transformers"), "measured: fitted to 1 row of 1 source, batch 1",
         "; transformers on processors held out 42 % off on 30 decodes"),
        (("nano", "vllm"), "unverified: no measurement here, as on orin",
         "; vllm on processors held out 41 % off on 3 batches"),
        (("nano", "vllm"), "unverified: made up", ""),
        (("nano", "mlc"), "measured: fitted to 1 row of 1 source, batch 1", ""),
    ],
)  # fmt: skip
def test_an_error_is_added_where_the_evidence_has_none(place, evidence, added):
    assert with_errors(line(*place, evidence), ERRORS, {}) == line(*place, evidence + added)


@pytest.mark.parametrize(
    ("name", "mode", "precision", "software", "missing"),
    [
        ("macbook_m1", "cpu", "int4", "llama_cpp", "of mode cpu"),
        ("macbook_m1", "gpu", "int4", "llama_cpp", None),
        ("jetson_agx_orin_32gb", "MAXN", "fp16", "transformers", "a prefill"),
        ("jetson_agx_orin_32gb", "15W", "fp16", "transformers", "of mode 15W or a prefill"),
        ("jetson_agx_orin_32gb", "15W", "int8", "transformers", "of mode 15W or a prefill or in int8"),
        ("rtx_a6000", None, "fp16", "llama_cpp", None),
        ("rtx_a6000", None, "fp16", "vllm", None),
    ],
)
def test_what_no_measured_row_is_of_is_named(name, mode, precision, software, missing):
    timing = roofline(chip(name), mode, architecture("tinyllama_1_1b"), precision, software=software).source
    said = with_errors(timing)
    assert said.endswith(f"; no row is {missing})") if missing else "no row is" not in said


def test_each_chip_of_a_line_has_its_own():
    own = line("orin", "transformers", "measured: fitted to 3 rows of 1 source, batch 1")
    other = "WISP, Table 12; the wall clock of this machine, whatever chip is named"
    found = with_errors(f"{own} (wisp has no x); {other}; {own}", ERRORS)
    assert found.count("48 % off on 3 decodes)") == 2
    assert other in found


@pytest.mark.parametrize("name", names("hardware/chip"))
def test_every_measured_or_borrowed_figure_of_conf_has_an_error(name):
    """The text is the one that a run's records have."""
    one, model = chip(name), architecture("tinyllama_1_1b")
    for software, reached in one.software.items():
        source = reached.sources["all"]
        if source.startswith("measured") or "no measurement here" in source:
            timing = roofline(one, None, model, "fp16", software=software).source
            assert " % off on " in with_errors(timing), timing


def test_decodes_come_first_then_the_kind_with_most_rows(tmp_path):
    file = tmp_path / "held_out.csv"
    file.write_text(
        "chip,software,kind,rows,median_error\na,s,prefill,9,0.1\na,s,decode,1,0.2\nb,s,prefill,2,0.3\nb,s,batch,5,0.4\n"
    )
    found = read_errors(file)
    assert {place: (one.kind, one.rows) for place, one in found.items()} == {
        ("a", "s"): ("decode", 1), ("b", "s"): ("batch", 5),
    }  # fmt: skip
