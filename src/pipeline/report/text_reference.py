"""Compares the texts of a job with those that another job wrote for the same prompts: without a human reference, the
cloud model's own text is what a policy should write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.report.records import RequestRecord
from pipeline.report.summary import request_mean
from serving.workload.metrics import Rouge1
from serving.workload.prompt import Prompt

RequestsByPrompt = Mapping[str, Sequence[RequestRecord]]


def with_reference(by_prompt: RequestsByPrompt, reference: RequestsByPrompt) -> dict[str, list[RequestRecord]]:
    """The requests, compared with the text that `reference` has for their prompt."""
    return {
        prompt: [_compared(request, reference[prompt][0]) if prompt in reference else request for request in requests]
        for prompt, requests in by_prompt.items()
    }


def text_metrics(metrics: Sequence[str], by_prompt: RequestsByPrompt) -> dict[str, float]:
    """The mean over all requests of each of these metrics that compare texts, where it is known."""
    requests = [request for own in by_prompt.values() for request in own]
    means = {metric: request_mean(metric, requests) for metric in metrics}
    return {metric: mean for metric, mean in means.items() if mean is not None}


def _compared(request: RequestRecord, reference: RequestRecord) -> RequestRecord:
    prompt = Prompt(request.prompt_id, "", (reference.text,), request.task)
    return replace(
        request,
        reference_rouge_1=1.0 if request.text == reference.text else Rouge1().score(request.text, prompt),
        reference_prefix=shared_prefix(request.tokens, reference.tokens),
        reference_equal=request.tokens == reference.tokens,
    )


def shared_prefix(tokens: Sequence[int], reference: Sequence[int]) -> float:
    """The share of `reference` before the first token that differs; 1 for an empty reference."""
    same = next((i for i, pair in enumerate(zip(tokens, reference, strict=False)) if pair[0] != pair[1]), None)
    return 1.0 if not reference else (min(len(tokens), len(reference)) if same is None else same) / len(reference)
