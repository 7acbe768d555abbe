"""Coefficients come back from made-up timings, and out of a real engine, however fast this machine is."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
from catalogue import architecture
from scipy.optimize import nnls

from serving.latency import Latency, load, load_fits
from serving.messages import Forward
from serving.pair import Model, Pair
from serving.progress import silent
from training.latency_fit import COEFFICIENTS, fit, non_negative
from training.latency_profile import Effort
from training.shape import draft_shapes, forward_shapes
from training.stages import profile_latency
from training.stopwatch import Run, Stopwatch, Timing, drafts, forwards

TRUE = Latency(2e-4, 6e-8, 9e-6, 6e-3, layers=8, source="made up", head_row_s=8e-5, head_c_s=1e-3)


def made_up(count: int, seed: int, noise: float) -> list[Timing]:
    """Timings that a machine of the true coefficients would show, each run off by a few per cent."""
    generator = np.random.default_rng(seed)
    timings = []
    for shape in forward_shapes(count, 1024, seed):
        spans = [(part.cached, part.new) for part in shape.parts]
        loads = (load(8, spans, sum(part.asked for part in shape.parts)),)
        runs = TRUE.seconds(loads[0]) * generator.normal(1, noise, size=5)
        timings.append(Timing(shape, loads, [Run(run, run) for run in runs.tolist()]))
    return timings


def test_the_fit_finds_the_coefficients_behind_noisy_timings():
    found = fit(made_up(120, 0, 0.02), made_up(40, 1, 0.02))
    for name in COEFFICIENTS:
        assert found.coefficients[name] == pytest.approx(getattr(TRUE, name), rel=0.3), name
    assert found.held_out.r2 > 0.99
    assert found.held_out.mape < 0.03
    assert (found.fitted.configurations, found.held_out.configurations) == (120, 40)


def test_without_noise_they_come_back_exactly():
    found = fit(made_up(30, 0, 0), made_up(10, 1, 0))
    assert found.coefficients == pytest.approx({name: getattr(TRUE, name) for name in COEFFICIENTS}, rel=1e-6)


def test_the_passes_of_one_draft_each_cost_their_constant():
    timing = made_up(30, 0, 0)
    passes = (load(8, [(0, 9)], 1), load(8, [(9, 1)], 1), load(8, [(10, 1)], 0))
    seconds = sum(TRUE.seconds(each) for each in passes)
    timing.append(Timing(timing[0].shape, passes, [Run(seconds, seconds)]))
    assert fit(timing, timing[-2:]).fitted.mape == pytest.approx(0, abs=1e-6)


def test_least_squares_without_negative_coefficients_are_those_of_scipy():
    generator = np.random.default_rng(0)
    for _ in range(20):
        x, y = generator.normal(size=(15, 6)), generator.normal(size=15)
        assert non_negative(x, y) == pytest.approx(nnls(x, y)[0], abs=1e-9)


def test_a_column_that_never_varies_from_nothing_gets_nothing():
    x = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert non_negative(x, np.array([2.0, 4.0, 6.0])).tolist() == pytest.approx([2, 0])


def test_runs_that_were_interrupted_count_only_where_no_other_is_left():
    disturbed, quiet = [Run(5.0, 2.0), Run(4.0, 3.0), Run(9.0, 3.0)], [Run(1.0, 1.0), Run(1.2, 1.19)]
    shape = forward_shapes(1, 256, 0)[0]
    assert Timing(shape, runs=disturbed + quiet).median_s == pytest.approx(1.1)
    assert Timing(shape, runs=disturbed).median_s == 4.0


def test_too_few_configurations_are_refused():
    with pytest.raises(ValueError, match=r"11 timed configurations are too few for 6 coefficients.*12 or more"):
        fit(made_up(11, 0, 0), made_up(4, 1, 0))
    with pytest.raises(ValueError, match="configurations=11 must be at least 12"):
        Effort(11, 1, 256, 0)


@pytest.mark.parametrize("shapes", [forward_shapes, draft_shapes])
def test_shapes_are_of_every_kind_within_the_longest_session_and_their_own_by_seed(shapes):
    some = shapes(50, 200, 0)
    assert len({shape.kind for shape in some[:5]}) == len({shape.kind for shape in some})
    assert max(part.cached + part.new for shape in some for part in shape.parts) <= 200
    assert shapes(50, 200, 0) == some
    assert not {shape.parts for shape in some if len(shape.parts) > 1} & {shape.parts for shape in shapes(50, 200, 1)}


class Listener:
    """An engine that only remembers what it was given, and what it was told to forget."""

    def __init__(self) -> None:
        self.heard, self.held = [], set()

    def execute(self, work):
        self.heard.append(work)
        names = [rows.session for rows in work.rows] if isinstance(work, Forward) else [work.session]
        self.held |= set(names)
        return (), (load(8, [(0, 1)]),)

    def drop(self, session, first):
        self.held.discard(session)


@pytest.mark.parametrize(("works", "shapes"), [(forwards(8), forward_shapes), (drafts, draft_shapes)])
def test_every_run_has_its_own_sessions_and_tokens_and_leaves_nothing(works, shapes):
    engine = Listener()
    timings = Stopwatch(engine, works, 50_000, 0).time(shapes(12, 256, 0), 3, lambda done: None)
    assert [len(timing.runs) for timing in timings] == [3] * 12
    assert not engine.held
    texts = [rows.tokens for work in engine.heard for rows in getattr(work, "rows", ())]
    texts += [work.feed for work in engine.heard if not isinstance(work, Forward)]
    long = sorted(text for text in texts if len(text) > 8)
    assert long
    assert all(a != b for a, b in pairwise(long))


def pair_of(checkpoints: tuple[Path, Path]) -> Pair:
    large, small = checkpoints
    return Pair(
        Model(timing=architecture("tinyllama_1_1b"), path=small), Model(timing=architecture("llama2_13b"), path=large)
    )


def test_a_real_pair_is_profiled(toy_pair, fresh):
    out, told = fresh("profile"), []
    pair = pair_of(toy_pair)
    profile_latency(out, progress=lambda *each: told.append(each), pair=pair, configurations=20, repeats=2, longest=128)
    fits = load_fits(out)
    assert set(fits.latencies) == {"tinyllama_1_1b", "llama2_13b"}
    for model in (pair.device, pair.cloud):
        latency = fits.latencies[model.timing.name]
        assert latency.layers == model.timing.layers
        assert all(isfinite(getattr(latency, name)) and getattr(latency, name) >= 0 for name in COEFFICIENTS)
        assert latency.seconds(load(latency.layers, [(64, 1)], 1)) > 0
    report = json.loads((out / "profile.json").read_text())
    assert report["machine"]["threads"] == 1
    for side in ("device", "cloud"):
        measured = report[side]["measurements"]
        assert [row["use"] for row in measured].count("held out") == report[side]["held_out"]["configurations"] == 10
        assert all(len(row["runs"]) == 2 and row["median_s"] > 0 for row in measured)
        assert 0 <= report[side]["quiet_share"] <= 1
    assert told[-1] == (60, 60, "cloud")


def test_two_models_under_one_name_are_refused(toy_pair, fresh):
    pair = pair_of(toy_pair)
    same = replace(pair, device=replace(pair.device, timing=pair.cloud.timing))
    with pytest.raises(ValueError, match=r"both models of the pair are timed as llama2_13b.*give them two"):
        profile_latency(fresh("profile"), progress=silent, pair=same)
