"""A request of the workload becomes the same request of a session, whatever its tokens come from."""

import pytest

from serving.deployment.queries import Query
from serving.messages import INF
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass
from serving.workload.workload import WorkloadRequest

ASKED, ANOTHER = (Prompt(name, "a text", (), "t") for name in ("asked", "another"))


def asked(slo: SloClass | None = None) -> WorkloadRequest:
    return WorkloadRequest(12, ASKED, 3, 4, 1.5, 0.25, 64, 8, slo)


def test_a_query_has_the_requests_name_device_and_times() -> None:
    found = Query.of(asked(), (1, 2), 8, (0,), None, stop_strings=("x",), num_cut=5)
    assert asked().session_name == found.request.session == "r00012"
    assert (found.device, found.arrival_s, found.think_s, found.num_cut) == (3, 1.5, 0.25, 5)
    assert (found.request.prompt, found.request.max_new_tokens, found.request.stop_tokens) == ((1, 2), 8, (0,))
    assert (found.prompt, found.request.stop_strings) == (ASKED, ("x",))
    assert Query.of(asked(), (1,), 8, (), None, prompt=ANOTHER).prompt == ANOTHER


@pytest.mark.parametrize(
    ("slo", "promised"),
    [
        (None, (0.0, INF)),
        (SloClass(name="speed", tokens_per_s=4.0), (4.0, INF)),
        (SloClass(name="both", tokens_per_s=4.0, ttft_s=0.5), (4.0, 0.5)),
    ],
)
def test_the_promises_are_those_of_the_class(slo: SloClass | None, promised: tuple[float, float]) -> None:
    found = Query.of(asked(slo), (1,), 8, (), None).request
    assert (found.slo_tokens_per_s, found.slo_ttft_s) == promised
