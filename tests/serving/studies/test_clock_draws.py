"""A job on many draws of the clock, from its setup to the metrics of every draw."""

import json

import pytest

from pipeline.report.results.draws import summarise_draws
from serving.hardware.clock_draw import as_json
from serving.hardware.error_pools import DRAWN_FILE
from serving.hardware.fleet import Fleet
from serving.hardware.replica_packing import ReplicaPacking
from serving.metrics import definitions
from serving.outcomes.constant import ConstantAcceptance
from serving.policy.partition.hypsplit import HypSplit
from serving.policy.slots.placement import TieredPlacement
from serving.progress import silent
from serving.runtimes.emulated import Emulated
from serving.runtimes.simulated import Simulated
from serving.stages import (
    check_measure_prefill_interference,
    draw_packing,
    draw_prefill_interference,
    measure_prefill_interference,
    pack_replicas,
)
from serving.studies.clock_draws import check_draw_clock, draw_clock
from tests.support.conf_files import architecture, chip
from tests.support.fake_setup import setup
from tests.support.simulated_tiers import division, tiered_setup, tiers

RUNTIME = Simulated(ConstantAcceptance(0.7, 50))
TBT = "latency/tbt_s/mean"


def draws(folder, errors, policy="sled", num_prompts=4, of=None, **how):
    """The metrics of each draw."""
    (folder / "errors.json").write_text(as_json(dict.fromkeys(
        ("decode", "prefill", "decode_unmeasured", "prefill_unmeasured"), errors
    )))  # fmt: skip
    for name in ("drawn", "draws"):
        (folder / name).mkdir()
    draw_clock(
        folder / "drawn", progress=silent, setup=of or setup(policy), runtime=RUNTIME,
        errors=folder / "errors.json", num_prompts=num_prompts, **how,
    )  # fmt: skip
    summarise_draws(folder / "draws", drawn=folder / "drawn")
    return json.loads((folder / "draws" / "draws.json").read_text())


def test_every_draw_has_a_value_and_errors_make_them_differ(tmp_path):
    found = draws(tmp_path, [-0.5, 0.0, 0.5], draws=12)
    assert {len(values) for values in found.values()} == {12}
    assert max(found[TBT]) > 1.2 * min(found[TBT])


@pytest.mark.parametrize("policy", ["sled", "edge_centric", "cloud_centric", "u_shape", "hat"])
def test_only_what_rests_on_the_clock_differs_from_draw_to_draw(tmp_path, policy):
    """What the registry calls free of the clock is the same in every draw, and the mean times are not."""
    found = draws(tmp_path, [-0.9, 0.0, 0.9], policy=policy, num_prompts=12, draws=6)
    differ = {metric for metric, values in found.items() if max(values) - min(values) > 1e-12 * abs(max(values))}
    assert {metric for metric in differ if not definitions.rests_on_clock(metric)} == set()
    assert {TBT, "latency/end_to_end_s/mean", "throughput/tokens_per_s", "resources/device_j_per_token"} <= differ


def test_batches_are_drawn_where_a_claim_is_about_them(tmp_path):
    found = draws(tmp_path, [-0.5, 0.0, 0.5], draws=4, batches=True)
    assert len(found["estimator/batch_s"]) == 4
    assert max(found["estimator/batch_s"]) > min(found["estimator/batch_s"]) > 0


def test_what_devices_wait_for_is_drawn_where_a_claim_is_about_it(tmp_path):
    found = draws(tmp_path, [-0.5, 0.0, 0.5], draws=4, time_lines=True)
    assert len(found["stalls/cloud_share"]) == 4
    assert max(found["stalls/cloud_share"]) > min(found["stalls/cloud_share"]) > 0


def test_tiers_are_divided_by_the_drawn_clock_and_their_use_is_kept(tmp_path):
    """Hyperion's claims on blocks and busy nodes: the split is of the speeds that nodes have in the draw."""
    nodes = tiers(1, 1)
    tiered = tiered_setup(nodes, override={"placement": TieredPlacement(division(nodes, strategy=HypSplit()))})
    found = draws(tmp_path, [-0.9, 0.0, 0.9], draws=8, of=tiered)
    blocks = [tuple(row) for row in zip(*(found[f"tiers/{name}/blocks"] for name in ("nano", "nx")), strict=True)]
    assert {sum(row) for row in blocks} == {tiered.pair.cloud.timed_architecture.layers}
    assert len(set(blocks)) > 1
    assert max(found["tiers/nano/utilisation"]) > min(found["tiers/nano/utilisation"]) > 0


def test_draws_say_from_which_pools_and_how_much_was_drawn(tmp_path):
    draws(tmp_path, [0.0], num_prompts=4, draws=2)
    found = json.loads((tmp_path / "draws" / DRAWN_FILE).read_text())
    assert (found["prompts"], found["requests"]) == (4, 4)
    hardware = setup("sled").hardware
    assert set(found["pools"]) == {
        f"{fleet.chip.name} {fleet.mode_name} {fleet.chip.software_name(fleet.software)}"
        for fleet in (hardware.device, hardware.cloud)
    }


def test_without_errors_every_draw_is_the_clock_itself(tmp_path):
    assert len(set(draws(tmp_path, [0.0], draws=3)[TBT])) == 1


def test_a_runtime_that_runs_models_is_refused_before_any_work():
    with pytest.raises(ValueError, match=r"the clock is drawn 200 times, .* add runtime=simulated"):
        check_draw_clock(setup=setup("sled"), runtime=Emulated(), draws=200, num_prompts=60)
    with pytest.raises(ValueError, match="must be 1 or more"):
        check_draw_clock(setup=setup("sled"), runtime=RUNTIME, draws=0, num_prompts=60)


def tables(folder, draw, errors, name, **how):
    """The rows of the table in each draw."""
    (folder / "errors.json").write_text(as_json(dict.fromkeys(
        ("decode", "prefill", "decode_unmeasured", "prefill_unmeasured"), errors
    )))  # fmt: skip
    (folder / name).mkdir()
    draw(folder / name, progress=silent, errors=folder / "errors.json", **how)
    assert json.loads((folder / name / DRAWN_FILE).read_text())["pools"]
    drawn = sorted((one for one in (folder / name).iterdir() if one.is_dir()), key=lambda one: int(one.name))
    return [json.loads((one / "rows.json").read_text()) for one in drawn]


PACKED = (architecture("llama2_13b"), architecture("llama2_7b"))
PACKING = ReplicaPacking(Fleet(chip("rtx_a6000"), count=8), architecture("llama2_70b"), "derived")


@pytest.mark.parametrize(
    ("table", "draw", "how"),
    [
        (pack_replicas, draw_packing, {"packing": PACKING, "architectures": PACKED}),
        (measure_prefill_interference, draw_prefill_interference,
         {"setup": setup("cloud_centric"), "prompt_lengths": (1, 512)}),
        (measure_prefill_interference, draw_prefill_interference,
         {"setup": setup("cloud_centric"), "chunk_sizes": (32, 2048)}),
    ],
)  # fmt: skip
def test_a_table_is_computed_on_each_draw(tmp_path, table, draw, how):
    """Without errors it is the table itself; with errors it differs from draw to draw."""
    table(tmp_path, **how)
    plain = json.loads((tmp_path / "rows.json").read_text())
    assert tables(tmp_path, draw, [0.0], "plain", draws=2, **how) == [plain, plain]
    drawn = tables(tmp_path, draw, [-0.9, 0.9], "drawn", draws=8, **how)
    assert len({json.dumps(one) for one in drawn}) > 1


@pytest.mark.parametrize("chunk", [0, 31])
def test_more_chunks_than_steps_are_refused(chunk):
    check_measure_prefill_interference(prompt_tokens=2048, chunk_sizes=(32, 4096))
    with pytest.raises(ValueError, match=f"chunk_sizes has {chunk}; 64 steps .* at least 32 for a prompt of 2048"):
        check_measure_prefill_interference(prompt_tokens=2048, chunk_sizes=(32, chunk))
