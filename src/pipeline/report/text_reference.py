"""Compares the texts of a job with those that another job wrote for the same prompts: without a human reference, the
cloud model's own text is what a policy should write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pipeline.report.records import RequestRecord
from pipeline.report.summary import request_mean

TEXT_METRICS = "text/"
"""Begins the metrics that compare texts."""

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
    return replace(
        request,
        reference_rouge_1=1.0 if request.text == reference.text else rouge_1(request.text, reference.text),
        reference_prefix=shared_prefix(request.tokens, reference.tokens),
        reference_equal=request.tokens == reference.tokens,
    )


def shared_prefix(tokens: Sequence[int], reference: Sequence[int]) -> float:
    """The share of `reference` before the first token that differs; 1 for an empty reference."""
    same = next((i for i, pair in enumerate(zip(tokens, reference, strict=False)) if pair[0] != pair[1]), None)
    return 1.0 if not reference else (min(len(tokens), len(reference)) if same is None else same) / len(reference)


def rouge_1(text: str, reference: str) -> float:
    """ROUGE-1 F with Porter stemming (Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004)."""
    return float(_scorer().score(reference, text)["rouge1"].fmeasure)


@cache
def _scorer() -> Any:
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
