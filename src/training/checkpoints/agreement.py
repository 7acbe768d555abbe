"""How often a drafter writes the next token of the target's greedy text, and what a round of drafts gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint
from serving.policy.policy import NO_REQUIREMENTS
from serving.progress import Progress
from serving.workload.workload import Workload
from training.checkpoints.drafters import Answer, Drafted
from training.fitting.cluster_statistics import clustered_ratio

ANSWERS_FILE = "answers.json"


def rows(drafted: Sequence[Drafted], weights_read: float) -> dict[str, Any]:
    """`{group: {row: {metric: values by answer}}}`: agreement, and tokens a round and a pass of the target.

    `weights_read` are those that a round's drafts read, of the target's.
    """
    cluster = np.arange(len(drafted))
    tokens = np.array([len(one.accepted) for one in drafted], np.float64)
    rounds = np.array([one.num_rounds for one in drafted], np.float64)
    right = np.array([one.num_hits for one in drafted], np.float64)
    passes = rounds * (1 + weights_read)
    found = {"agreement": (right, tokens), "tokens_per_round": (tokens, rounds), "tokens_per_pass": (tokens, passes)}
    cells = {name: clustered_ratio(*parts, cluster, len(drafted)) for name, parts in found.items()}
    return {"drafter": {"all": cells}}


def record(
    cloud: Checkpoint, workload: Workload, accelerator: str, progress: Progress, kept: Path | None = None
) -> list[Answer]:
    """The model's greedy answers; finished ones are kept in the file `kept`."""
    from serving.deployment.model_loading import load_models, make_queries
    from serving.outcomes.record import target_answers

    models = load_models(cloud, cloud, accelerator, replace(NO_REQUIREMENTS, drafter=False))
    queries = make_queries(workload, Decoding(), 0, 1, models.tokenizer)
    answers = target_answers(models, queries, 0, progress, kept)
    return [Answer(query.request.prompt, answer) for query, answer in zip(queries, answers, strict=True)]


def write(folder: Path, answers: Sequence[Answer]) -> None:
    texts = [{"prompt": list(answer.prompt), "tokens": list(answer.tokens)} for answer in answers]
    (folder / ANSWERS_FILE).write_text(json.dumps(texts), encoding="utf-8")


def read(folder: Path) -> list[Answer]:
    """Reads what `write` left. Raises ValueError for a damaged file."""
    try:
        texts = json.loads((folder / ANSWERS_FILE).read_text(encoding="utf-8"))
        return [Answer(tuple(text["prompt"]), tuple(text["tokens"])) for text in texts]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"the answers of {folder / ANSWERS_FILE} cannot be read ({problem!r}); record again") from None
