"""How a policy serves with a hosted API: calls, billed tokens and times, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from serving.messages import Hop, MessageReceived, Reply, Request, SequenceSlice, Span, Verdict
from serving.studies.buying import api_service
from serving.studies.buying.api_calls import ApiCall, ApiCallObserver
from serving.studies.buying.api_service import _Answer, measure_api
from serving.studies.capacity.load_test import LoadTest
from serving.workload.slo import SloClass
from tests.serving.studies.buying.apis import API, routing
from tests.serving.studies.capacity.steady_setup import ALWAYS, setup
from tests.support.policies import policy

TEST = LoadTest(warmup_s=4, window_s=20, stagger_s=2, answers=4)


def ask(watch: ApiCallObserver, session: str, now: float) -> None:
    request = Request(
        0, SequenceSlice(session, 0, 3, (1, 2, 3), 0, "greedy"), (Hop("cloud", Span(0, 1, True, True)),), 0, (), "d"
    )
    watch.event_handled("cloud-0", MessageReceived(request), now, ())


def answer(watch: ApiCallObserver, session: str, now: float, committed_len: int, left: int) -> None:
    reply = Reply(session, 0, committed_len, Verdict(0, 7), ("cloud-0",), left)
    watch.message_sent("cloud-0", "d", reply, 10, now, now)


def test_a_call_lasts_until_its_budget_is_spent() -> None:
    watch = ApiCallObserver(frozenset({"cloud-0"}))
    ask(watch, "s", 1.0)
    for n in range(3):
        answer(watch, "s", 2.0 + n, 3 + n, 2 - n)
    ask(watch, "s", 9.0)
    answer(watch, "s", 9.5, 7, 0)
    assert watch.calls == {"s": [ApiCall(1.0, 3, 3, 2.0, 4.0), ApiCall(9.0, 7, 1, 9.5, 9.5)]}


def test_an_api_that_is_slower_than_the_run_s_cloud_delays_the_answer() -> None:
    """The first token 0.5 s after the call in place of 0.1, the third 0.6 in place of 0.3."""
    call = ApiCall(1.0, 3, 3, 1.1, 1.3)
    assert call.first_delay_s(API) == pytest.approx(0.4)
    assert call.delay_s(API) == pytest.approx(0.3)


def answer_of_two_calls() -> _Answer:
    """A text before whose first token two calls are made: three tokens take 0.6 s in place of 0.3, one 0.5 of 0.2."""
    fleet = SimpleNamespace(schedule=None, joules=lambda busy_s, idle_s: 10 * busy_s + idle_s)
    record = SimpleNamespace(
        token_times_s=(3.0, 4.0), arrived_s=0.0, started_s=0.0, ended_s=4.0, device_busy_s=1.0, device="d"
    )
    calls = [ApiCall(1.0, 3, 3, 1.1, 1.3), ApiCall(2.0, 7, 1, 2.2, 2.2)]
    topology = SimpleNamespace(device_fleets={"d": fleet})
    return _Answer(SloClass(name="c", tokens_per_s=1.0), record, calls, API, topology, None)  # type: ignore[arg-type]


def test_the_first_token_waits_for_all_of_the_calls_before_it() -> None:
    assert answer_of_two_calls().ttft_s == pytest.approx(3.0 + 0.3 + 0.3)


def test_a_device_waits_at_idle_power_for_a_slower_api() -> None:
    assert answer_of_two_calls().device_j == pytest.approx(10 * 1.0 + 3.0 + 0.6)


def test_an_api_that_writes_everything_is_called_once_an_answer() -> None:
    """18 tokens: 0.5 s and 17 at 20 tokens/s; the ideal link takes no time, and a prompt has 100 tokens."""
    found = measure_api(setup(chosen=policy("cloud_centric")), ALWAYS, TEST, API, 0)
    assert (found.calls, found.input_tokens, found.output_tokens, found.tokens) == (1, 100, 18, 18)
    assert found.ttft_s == pytest.approx(0.5, abs=0.002)
    assert found.tokens_per_s == pytest.approx(18 / 1.35, rel=0.01)
    assert found.usd_per_token(API) == pytest.approx((100 * 0.1 + 18 * 0.4) / 1e6 / 18)
    assert found.violations == {"c": 0.0}


def test_routing_pays_for_the_whole_text_at_every_call() -> None:
    """Each of 18 tokens is a call with 100, 101, ... tokens; a token takes a draft of 20 ms and 0.5 s."""
    found = measure_api(setup(rate=1.0, chosen=routing()), ALWAYS, TEST, API, 0)
    assert (found.calls, found.output_tokens) == (18, 18)
    assert found.input_tokens == pytest.approx(sum(range(100, 118)))
    assert found.tokens_per_s == pytest.approx(1 / 0.52, rel=0.02)
    assert found.ttft_s == pytest.approx(0.52, abs=0.005)


def test_answers_through_an_api_are_late_by_speed_or_by_their_first_token() -> None:
    def late(tokens_per_s: float, ttft_s: float | None) -> float:
        classes = (SloClass(name="c", tokens_per_s=tokens_per_s, ttft_s=ttft_s),)
        return measure_api(setup(slo=classes, chosen=policy("cloud_centric")), ALWAYS, TEST, API, 0).violations["c"]

    assert [late(15.0, None), late(10.0, 0.4), late(10.0, 0.6)] == [1, 1, 0]


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_an_api_is_measured_for_every_class(share: float) -> None:
    """A device that wants 15 tokens/s is late, however few there are of its class."""
    shares = (("a", 5.0, 1 - share), ("b", 15.0, share))
    classes = tuple(SloClass(name=name, tokens_per_s=rate, share=part) for name, rate, part in shares)
    found = measure_api(setup(slo=classes, chosen=policy("cloud_centric")), ALWAYS, replace(TEST, answers=8), API, 0)
    assert found.violations == {"a": 0, "b": 1}


def test_a_class_without_a_complete_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = tuple(SloClass(name=name, tokens_per_s=5.0, share=0.5) for name in "ab")
    silent, answers = {"b"}, api_service._answers
    monkeypatch.setattr(
        api_service, "_answers", lambda own, *how: [] if own.workload.slo[0].name in silent else answers(own, *how)
    )
    bed = setup(slo=classes, chosen=policy("cloud_centric"))
    assert measure_api(bed, ALWAYS, TEST, API, 0).violations == {"a": 0, "b": 1}
    silent.add("a")
    with pytest.raises(ValueError, match="no answer was completed"):
        measure_api(bed, ALWAYS, TEST, API, 0)
