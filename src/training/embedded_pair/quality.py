"""The quality stage: how good each model of the pair is, and how well the small one drafts for the large one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving.progress import Progress
from training.embedded_pair import corpus as corpora
from training.embedded_pair import generation
from training.embedded_pair import tokenizer as tokenizers
from training.embedded_pair.draft_quality import Drafts, auc, draft, tokens_a_round
from training.embedded_pair.tasks import TASKS
from training.fitting import cost, machine
from training.fitting.trainer import ALL_CORES, Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Row = dict[str, Any]


def measure(
    out: Path,
    *,
    progress: Progress,
    corpus: Path,
    large: Path,
    small: Path,
    items_per_task: int = 400,
    drafted: int = 4,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Write quality.json and generations.parquet: greedy outputs of both models on the first test items of each task.

    Raises ValueError when the corpus holds fewer test items of a task than asked for.
    """
    rows = _chosen(corpora.load(corpus, "test"), items_per_task)
    models = {"large": generation.load(large), "small": generation.load(small)}
    tokenizer = tokenizers.load(large)
    prompts = [row["prompt"] for row in rows]

    def told(part: int, note: str) -> Callable[[int], None]:
        return lambda done: progress(part * len(rows) + done, 3 * len(rows), note)

    with trainer.using_threads():
        outputs = {
            name: generation.greedy(model, tokenizer, prompts, done=told(part, f"{name} model's outputs"))
            for part, (name, model) in enumerate(models.items())
        }
        ids = tokenizers.prompt_ids(tokenizer, prompts)
        drafts = draft(models["small"], tokenizer, ids, outputs["large"], told(2, "small model's drafts"))
    texts = {name: tokenizer.batch_decode(written, skip_special_tokens=True) for name, written in outputs.items()}
    generations = [row for name, written in texts.items() for row in _graded(name, rows, written)]
    _write_parquet(out / "generations.parquet", generations)
    report = {
        "items_per_task": items_per_task,
        "models": {name: _scores(generations, name) for name in models},
        "drafting": _drafting(drafts, rows, drafted),
        "cost": _costs(models),
        "machine": machine.facts(),
    }
    (out / "quality.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def exact_match(output: str, reference: str) -> bool:
    """The same text, apart from space and capitals."""
    return " ".join(output.lower().split()) == " ".join(reference.lower().split())


def _chosen(rows: Sequence[Row], per_task: int) -> list[Row]:
    chosen = [row for task in TASKS for row in [row for row in rows if row["task"] == task][:per_task]]
    if len(chosen) < per_task * len(TASKS):
        raise ValueError(f"items_per_task is {per_task}, the corpus has fewer test items of some task; lower it")
    return chosen


def _graded(model: str, rows: Sequence[Row], texts: Sequence[str]) -> list[Row]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1"])
    return [
        {
            "model": model,
            "id": row["id"],
            "task": row["task"],
            "output": text,
            "reference": row["reference"],
            "exact_match": exact_match(text, row["reference"]),
            "rouge1": scorer.score(row["reference"], text)["rouge1"].fmeasure,
        }
        for row, text in zip(rows, texts, strict=True)
    ]


def _scores(generations: Sequence[Row], model: str) -> Row:
    """Exact match and ROUGE-1 (F) of one model by task, and their means over tasks."""
    of_task = {task: [row for row in generations if row["model"] == model and row["task"] == task] for task in TASKS}
    scores: Row = {
        measure: {task: float(np.mean([row[measure] for row in rows])) for task, rows in of_task.items()}
        for measure in ("exact_match", "rouge1")
    }
    return scores | {f"mean_{measure}": float(np.mean(list(scores[measure].values()))) for measure in scores}


def _drafting(drafts: Drafts, rows: Sequence[Row], drafted: int) -> Row:
    accepted, content = np.concatenate(drafts.accepted), np.concatenate(drafts.content)
    doubt = 1 - np.concatenate(drafts.confidence)
    return {
        "tokens": len(accepted),
        "content_tokens": int(content.sum()),
        "acceptance": _share(accepted),
        "acceptance_content": _share(accepted[content]),
        "acceptance_content_by_task": {task: _content_acceptance(drafts, rows, task) for task in TASKS},
        "auc": auc(doubt, ~accepted),
        "auc_content": auc(doubt[content], ~accepted[content]),
        "drafted": drafted,
        "tokens_a_round": tokens_a_round(drafts.accepted, drafted),
        "exit_agreement_by_layer": np.concatenate(drafts.exits, axis=1).mean(axis=1).tolist(),
    }


def _content_acceptance(drafts: Drafts, rows: Sequence[Row], task: str) -> float | None:
    members = [number for number, row in enumerate(rows) if row["task"] == task]
    return _share(np.concatenate([drafts.accepted[i][drafts.content[i]] for i in members]))


def _share(true: NDArray[np.bool_]) -> float | None:
    return float(true.mean()) if len(true) else None


def _costs(models: Mapping[str, PreTrainedModel]) -> Row:
    """Weights and one-thread milliseconds of a decoded token, and the large model's over the small one's."""
    costs: Row = {
        name: {"weights": cost.weights(model), "decode_ms": cost.decode_ms(model)} for name, model in models.items()
    }
    return costs | {f"{kind}_ratio": costs["large"][kind] / costs["small"][kind] for kind in ("weights", "decode_ms")}


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path)
