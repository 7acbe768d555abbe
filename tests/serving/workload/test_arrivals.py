from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serving.workload.arrivals import Arrival, AzureTrace, ClosedLoop, Episodes, Poisson, checked_times

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def trace(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return path


def test_a_closed_loop_assigns_devices_in_turn_without_times():
    arrivals = ClosedLoop(think_s=2).times(5, 2, seed=0)
    assert [arrival.device for arrival in arrivals] == [0, 1, 0, 1, 0]
    assert {(arrival.at_s, arrival.think_s) for arrival in arrivals} == {(None, 2)}


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    times = [arrival.at_s for arrival in Poisson(rate_per_s=5).times(4000, 3, seed=1)]
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) >= 0
    assert mean == pytest.approx(0.2, rel=0.05)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.2, rel=0.08)


def test_poisson_uses_every_device_alike():
    counts = Counter(arrival.device for arrival in Poisson().times(3000, 3, seed=1))
    assert sorted(counts) == [0, 1, 2]
    assert min(counts.values()) > 900


def test_poisson_arrivals_depend_on_the_seed_not_on_the_number():
    assert Poisson().times(10, 2, seed=1) == Poisson().times(20, 2, seed=1)[:10]
    assert Poisson().times(10, 2, seed=1) != Poisson().times(10, 2, seed=2)


def test_a_trace_starts_at_zero_and_runs_faster_when_asked(tmp_path):
    path = trace(tmp_path, "2023-11-16 18:15:46.5000000,374,44", "2023-11-16 18:15:50.5000000,396,109")
    assert [arrival.at_s for arrival in AzureTrace(path=path).times(2, 1, seed=0)] == [0, 4]
    fast = AzureTrace(path=path, speed=2, use_lengths=True).times(2, 1, seed=0)
    assert [(arrival.at_s, arrival.prompt_tokens, arrival.new_tokens) for arrival in fast] == [
        (0, 374, 44),
        (2, 396, 109),
    ]


def test_offsets_from_utc_count(tmp_path):
    """One o'clock comes twice where summer time ends."""
    path = trace(tmp_path, "2024-11-03 01:59:00-04:00,5,5", "2024-11-03 01:01:00-05:00,5,5")
    assert [arrival.at_s for arrival in AzureTrace(path=path).times(2, 1, seed=0)] == [0, 120]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-17,1,1", "line 3: TIMESTAMP is '2023-11-17', a day; needed is a time"),
        ("yesterday,1,1", "trace.csv line 3: TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:15:47,one,1", 'line 3: field "ContextTokens" is a text, needed is a whole number'),
        ("2023-11-16 18:15:47,1,0", "line 3: GeneratedTokens is 0, needed is 1 or more"),
        ("2023-11-16 18:15:40,1,1", "line 3: TIMESTAMP is earlier than the previous line"),
    ],
)
def test_a_broken_line_of_a_trace_is_named(tmp_path, line, message):
    path = trace(tmp_path, "2023-11-16 18:15:46,374,44", line)
    with pytest.raises(ValueError, match=message):
        AzureTrace(path=path).times(2, 1, seed=0)


def test_a_trace_that_is_missing_or_too_short_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"set workload.arrivals.path="):
        AzureTrace().times(1, 1, seed=0)
    with pytest.raises(ValueError, match=r"gone.csv does not exist; set workload\.arrivals\.path=FILE"):
        AzureTrace(path=tmp_path / "gone.csv").times(1, 1, seed=0)
    with pytest.raises(ValueError, match="has 1 requests, but 2 are needed"):
        AzureTrace(path=trace(tmp_path, "2023-11-16 18:15:46,374,44")).times(2, 1, seed=0)


@pytest.mark.parametrize(
    "make", [lambda: Poisson(rate_per_s=0), lambda: ClosedLoop(think_s=-1), lambda: AzureTrace(speed=0)]
)
def test_values_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"workload\.arrivals\.\w+ must be"):
        make()


def test_the_recorded_azure_trace(data):
    path = data / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv"
    arrivals = AzureTrace(path=path, use_lengths=True).times(19366, 4, seed=0)
    assert arrivals[-1].at_s == pytest.approx(3501.72, abs=0.01)
    assert (arrivals[0].prompt_tokens, arrivals[0].new_tokens) == (374, 44)


def test_each_episode_starts_at_once_and_independently():
    arrivals = Episodes(tasks_per_episode=3, rate_per_s=0.5, episode_s=1000).times(8, 1, seed=4)
    times = [arrival.at_s for arrival in arrivals]
    assert [times[i] for i in (0, 3, 6)] == [0, 1000, 2000]
    assert times == sorted(times)
    assert times[2] < 100
    assert times[4] - times[3] != times[1] - times[0]
    assert arrivals == Episodes(tasks_per_episode=3, rate_per_s=0.5, episode_s=1000).times(9, 1, seed=4)[:8]


def test_the_gaps_of_episodes_are_a_poisson_process():
    times = [arrival.at_s for arrival in Episodes(tasks_per_episode=2000, rate_per_s=5).times(2000, 1, seed=1)]
    assert times[-1] / 1999 == pytest.approx(0.2, rel=0.06)


def test_an_episode_longer_than_its_period_delays_the_next():
    times = [
        arrival.at_s for arrival in Episodes(tasks_per_episode=50, rate_per_s=1, episode_s=5).times(100, 1, seed=0)
    ]
    assert times == sorted(times)
    assert times[50] == times[49] > 5


@pytest.mark.parametrize("wrong", [{"tasks_per_episode": 0}, {"rate_per_s": 0}, {"episode_s": -1}])
def test_episodes_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"workload\.arrivals\.{next(iter(wrong))} must be"):
        Episodes(**wrong)


@dataclass(frozen=True)
class Own:
    """Arrivals of a user's."""

    found: Any

    def times(self, n: int, devices: int, seed: int) -> Any:
        return self.found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"Own\.times returned NoneType for 2 requests"),
        ((Arrival(0), Arrival(1)), "returned tuple for 2 requests"),
        ([Arrival(0)], "returned a list of 1 for 2 requests"),
        ([Arrival(0)] * 3, "returned a list of 3 for 2 requests"),
        ([0.0, 1.0], "returned a list of 2 for 2 requests; a list of as many Arrival objects is wanted"),
        ([Arrival(0), Arrival(2)], "request 1 is of device 2; there are 2, from 0"),
        ([Arrival(-1), Arrival(0)], "request 0 is of device -1"),
        ([Arrival(0, 1.0), Arrival(1, -5.0)], r"request 1 has at_s=-5\.0; 0 or more seconds"),
        ([Arrival(0, float("nan")), Arrival(1)], "request 0 has at_s=nan"),
        ([Arrival(0, float("inf")), Arrival(1)], "request 0 has at_s=inf"),
        ([Arrival(0), Arrival(1, think_s=-1.0)], r"request 1 has think_s=-1\.0"),
    ],
)
def test_arrivals_of_a_user_that_cannot_be_are_refused(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_times(Own(found), 2, 2, 0)


def test_arrivals_of_a_user_are_what_its_class_returns() -> None:
    found = [Arrival(1, 0.0), Arrival(0, 2.5)]
    assert checked_times(Own(found), 2, 2, 0) is found
