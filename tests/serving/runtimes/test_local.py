"""The runtime `local` reports the overhead of decisions."""

import asyncio

import pytest

from serving.runtimes.local import Local
from tests.support.fake_setup import models, queries, setup


@pytest.mark.parametrize(("name", "told"), [
    ("sled", {"device_ms_per_token", "cloud_share"}),
    ("edge_centric", {"device_ms_per_token"}),
])  # fmt: skip
def test_the_local_runtime_reports_the_overhead_of_decisions(name: str, told: set[str]) -> None:
    asked = queries(2)
    records, _, overhead = asyncio.run(Local("wall", shaped=False).run(setup(name), models(), asked))
    assert [records[q.request.session].ending for q in asked] == ["complete"] * 2
    assert set(overhead) == told
    assert all(value > 0 for value in overhead.values())
