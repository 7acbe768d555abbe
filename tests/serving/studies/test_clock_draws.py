"""A job on many draws of the clock, from its setup to the metrics of every draw."""

import json

import pytest

from pipeline.report.results.draws import summarise_draws
from serving.hardware.clock_draw import as_json
from serving.outcomes.constant import ConstantAcceptance
from serving.progress import silent
from serving.runtimes.emulated import Emulated
from serving.runtimes.simulated import Simulated
from serving.studies.clock_draws import check_draw_clock, draw_clock
from tests.support.fake_setup import setup

RUNTIME = Simulated(ConstantAcceptance(0.7, 50))
TBT = "latency/tbt_s/mean"


def draws(folder, errors, **how):
    """The metrics of each draw."""
    (folder / "errors.json").write_text(as_json(dict.fromkeys(
        ("decode", "prefill", "decode_unmeasured", "prefill_unmeasured"), errors
    )))  # fmt: skip
    for name in ("drawn", "draws"):
        (folder / name).mkdir()
    draw_clock(
        folder / "drawn", progress=silent, setup=setup("sled"), runtime=RUNTIME, errors=folder / "errors.json",
        num_prompts=4, **how,
    )  # fmt: skip
    summarise_draws(folder / "draws", drawn=folder / "drawn")
    return json.loads((folder / "draws" / "draws.json").read_text())


def test_every_draw_has_a_value_and_errors_make_them_differ(tmp_path):
    found = draws(tmp_path, [-0.5, 0.0, 0.5], draws=12)
    assert {len(values) for values in found.values()} == {12}
    assert max(found[TBT]) > 1.2 * min(found[TBT])


def test_without_errors_every_draw_is_the_clock_itself(tmp_path):
    assert len(set(draws(tmp_path, [0.0], draws=3)[TBT])) == 1


def test_a_runtime_that_runs_models_is_refused_before_any_work():
    with pytest.raises(ValueError, match=r"the clock is drawn 200 times, .* add runtime=simulated"):
        check_draw_clock(setup=setup("sled"), runtime=Emulated(), draws=200, num_prompts=60)
    with pytest.raises(ValueError, match="must be 1 or more"):
        check_draw_clock(setup=setup("sled"), runtime=RUNTIME, draws=0, num_prompts=60)
