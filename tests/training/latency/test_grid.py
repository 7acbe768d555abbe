"""The grid of configurations: WISP's five categories in its numbers, in an order that may be cut anywhere."""

from __future__ import annotations

from collections import Counter

import pytest

from training.latency.grid import (
    CATEGORIES,
    COMPUTE_GRID,
    FITTED_BY_CATEGORY,
    HELD_OUT_BY_CATEGORY,
    MEMORY_GRID,
    MIXED,
    apportion,
)
from training.latency.work import DRAFT_GRID, FORWARD_GRID

both = pytest.mark.parametrize("catalogue", [FORWARD_GRID, DRAFT_GRID])


@both
def test_the_default_grid_has_the_papers_number_of_each_category(catalogue):
    shapes = catalogue.shapes(123, 50, 256, 0)
    assert Counter(shape.category for shape in shapes if not shape.held_out) == FITTED_BY_CATEGORY
    assert Counter(shape.category for shape in shapes if shape.held_out) == HELD_OUT_BY_CATEGORY
    assert tuple(FITTED_BY_CATEGORY) == CATEGORIES


@both
def test_sessions_have_at_least_one_token_and_at_most_the_longest_length(catalogue):
    for longest in (128, 256, 2048):
        parts = [part for shape in catalogue.shapes(123, 50, longest, 0) for part in shape.sessions]
        assert max(part.cached_tokens + part.new_tokens for part in parts) <= longest
        assert min(part.cached_tokens for part in parts) >= 0
        assert min(part.new_tokens for part in parts) >= 1


@both
def test_a_seed_gives_its_own_configurations_and_what_is_held_out_was_never_fitted(catalogue):
    shapes = catalogue.shapes(123, 50, 1024, 0)
    assert catalogue.shapes(123, 50, 1024, 0) == shapes
    assert catalogue.shapes(123, 50, 1024, 1) != shapes
    known = {shape.sessions for shape in shapes if not shape.held_out}
    assert not {shape.sessions for shape in shapes if shape.held_out and len(shape.sessions) > 1} & known


@both
def test_every_beginning_of_the_grid_has_its_share_of_each_category(catalogue):
    some = catalogue.shapes(123, 50, 256, 0)[:40]
    assert {shape.category for shape in some} == set(CATEGORIES)
    assert 10 <= sum(shape.held_out for shape in some) <= 13
    assert {shape.kind for shape in some} == {shape.kind for shape in catalogue.shapes(123, 50, 256, 0)}


def test_compute_bound_batches_are_uncached_and_memory_bound_ones_mostly_cached():
    shapes = FORWARD_GRID.shapes(123, 50, 2000, 0)
    totals = {sum(part.new_tokens for part in shape.sessions) for shape in shapes if shape.category == COMPUTE_GRID}
    assert (min(totals), max(totals)) == (1200, 2000)
    memory = [shape.sessions for shape in shapes if shape.category == MEMORY_GRID]
    assert {part.new_tokens for parts in memory for part in parts} == {1, 5, 10, 20, 50, 100}
    assert {part.cached_tokens + part.new_tokens for parts in memory for part in parts} == {500, 1000, 1500, 2000}
    assert {len(parts) for parts in memory} == {1, 4}
    for shape in shapes:
        if shape.category == MIXED and shape.kind == "verify and prefill":
            assert {part.cached_tokens == 0 for part in shape.sessions} == {True, False}


def test_counts_are_apportioned_in_whole_numbers():
    assert apportion(123, FITTED_BY_CATEGORY) == FITTED_BY_CATEGORY
    assert apportion(12, FITTED_BY_CATEGORY) == dict(zip(CATEGORIES, (2, 5, 2, 1, 2), strict=True))
    assert sum(apportion(37, FITTED_BY_CATEGORY).values()) == 37
