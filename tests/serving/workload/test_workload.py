from pathlib import Path

import pytest

from serving.workload.arrivals import AzureTrace, Poisson
from serving.workload.datasets.commonsense_qa import CommonsenseQA
from serving.workload.metrics import ExactMatch, FinalNumber
from serving.workload.prompt import Prompt
from serving.workload.slo import SloClass
from serving.workload.workload import ProfilingWorkload, Workload
from tests.serving.workload.test_encoding import Letters


class Twenty:
    """A data set of twenty prompts in two tasks."""

    name = "Twenty"
    metrics = ()
    measures_quality_of = "none"
    path = None

    def prompts(self):
        return [Prompt(f"{number}", f"say {number}", (), "even" if number % 2 == 0 else "odd") for number in range(20)]


class TwoWithOneId(Twenty):
    """A data set whose items share an id."""

    def prompts(self):
        return [Prompt("3", text, (), "t") for text in ("one", "two")]


def test_a_workload_checks_the_prompts_of_its_data_set():
    with pytest.raises(ValueError, match=r"^Twenty: item 2 \(id '3'\): item 1 has the same id"):
        Workload(dataset=TwoWithOneId(), num_prompts=2).requests(1)


class TwiceJudged(Twenty):
    """A data set of two metrics, of which a run would score one."""

    metrics = (ExactMatch(), FinalNumber())


def test_a_workload_checks_the_metrics_of_its_data_set():
    with pytest.raises(ValueError, match=r"^workload.dataset: TwiceJudged.metrics has ExactMatch and FinalNumber; "):
        Workload(dataset=TwiceJudged())


def test_a_closed_loop_gives_every_device_its_queue():
    requests = Workload(dataset=Twenty(), devices=3, num_prompts=8).requests()
    assert [(request.device, request.position) for request in requests] == [(i % 3, i // 3) for i in range(8)]
    assert [request.index for request in requests] == list(range(8))
    assert {request.at_s for request in requests} == {None}


def test_open_arrivals_have_times_and_positions_in_their_devices_queue():
    requests = Workload(dataset=Twenty(), devices=3, num_prompts=20, arrivals=Poisson(rate_per_s=4)).requests()
    times = [request.at_s for request in requests]
    assert times == sorted(times)
    for device in range(3):
        positions = [request.position for request in requests if request.device == device]
        assert positions == list(range(len(positions)))


def test_the_testbed_gives_the_number_of_devices_when_the_workload_does_not():
    workload = Workload(dataset=Twenty(), num_prompts=6)
    assert {request.device for request in workload.requests(num_devices=2)} == {0, 1}
    with pytest.raises(ValueError, match=r"workload.devices is null"):
        workload.requests()


def test_arrivals_and_slo_classes_do_not_change_the_prompts():
    slo = (SloClass(name="slow", tokens_per_s=2, share=0.5), SloClass(name="fast", tokens_per_s=8, share=0.5))
    plain = Workload(dataset=Twenty(), devices=2, num_prompts=10).requests()
    other = Workload(dataset=Twenty(), devices=5, num_prompts=10, arrivals=Poisson(), slo=slo).requests()
    assert [request.prompt for request in plain] == [request.prompt for request in other]
    assert {request.slo for request in other} == set(slo)


def test_recorded_lengths_only_lower_the_limits(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5000,7\n2023-11-16 18:15:47,9,500\n")
    arrivals = AzureTrace(path=trace, use_lengths=True)
    requests = Workload(
        dataset=Twenty(),
        devices=1,
        num_prompts=2,
        arrivals=arrivals,
        truncate="left",
        max_prompt_tokens=100,
        max_new_tokens=50,
    ).requests()
    assert [(request.max_prompt_tokens, request.max_new_tokens) for request in requests] == [(100, 7), (9, 50)]
    with pytest.raises(ValueError, match=r"lengths=true cuts prompts: set workload.truncate"):
        Workload(dataset=Twenty(), arrivals=arrivals)


def test_a_row_of_a_trace_that_is_shorter_than_the_template_leaves_one_token_of_the_prompt(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,7\n")
    arrivals = AzureTrace(path=trace, use_lengths=True)
    workload = Workload(dataset=Twenty(), devices=1, num_prompts=1, arrivals=arrivals, truncate="left")
    (request,) = workload.requests()
    tokens = workload.encode(request, Letters(chat=True)).tokens
    assert "".join(map(chr, tokens)) == f"<{request.prompt.text[-1]}>"


def test_a_prompt_that_does_not_fit_is_named():
    class Words:
        chat_template = None
        bos_token_id = None

        def __call__(self, text, *, add_special_tokens):
            return {"input_ids": list(range(len(text.split())))}

    workload = Workload(dataset=Twenty(), devices=1, num_prompts=1, max_prompt_tokens=1)
    (request,) = workload.requests()
    with pytest.raises(
        ValueError, match=rf"Twenty prompt {request.prompt.id}: the prompt has 2 tokens, the limit is 1"
    ):
        workload.encode(request, Words())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_prompts": 0}, "workload.num_prompts must be 1 or more, got 0"),
        ({"max_new_tokens": 0}, "workload.max_new_tokens must be 1 or more"),
        ({"max_prompt_tokens": -1}, "workload.max_prompt_tokens must be 1 or more, got -1"),
        ({"devices": 0}, "workload.devices must be 1 or more"),
        ({"slo": (SloClass(name="a", tokens_per_s=1, share=0.5),)}, "must add up to 1"),
        ({"path": Path("x.jsonl")}, "workload.path=x.jsonl is set, but Twenty does not read that file"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Workload(dataset=Twenty(), **values)


def test_profiling_takes_what_is_left_where_fewer_prompts_are_allowed():
    served = {each.prompt.id for each in Workload(dataset=Twenty(), devices=1, num_prompts=14).requests()}
    profiled = ProfilingWorkload(dataset=Twenty(), devices=1, skip=14, num_prompts=60, or_fewer=True).requests()
    assert len(profiled) == 6
    assert served.isdisjoint(each.prompt.id for each in profiled)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": 14, "num_prompts": 60}, "workload.profiling.num_prompts=60 after 14 that are skipped is more than"),
        ({"skip": 20, "or_fewer": True}, "all 20 prompts of Twenty are served, .* lower workload.num_prompts"),
        ({"num_prompts": 0}, "workload.profiling.num_prompts must be 1 or more"),
    ],
)
def test_refusals_of_profiling_name_its_own_options(options, message):
    with pytest.raises(ValueError, match=message):
        ProfilingWorkload(dataset=Twenty(), devices=1, **options).requests()


def test_nothing_is_profiled_on_sealed_prompts():
    dataset = CommonsenseQA(path=Path("dev.jsonl"), evaluation="sealed")
    with pytest.raises(ValueError, match="nothing is trained or profiled on sealed prompts"):
        ProfilingWorkload(dataset=dataset)
