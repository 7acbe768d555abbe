"""The quality of the pair: each model's scores on test items, and how well the small model drafts for the large one."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.progress import Progress
from serving.workload.metrics import Rouge1
from serving.workload.prompt import Prompt
from training.embedded_pair import corpus as corpora
from training.embedded_pair import tokenizer as tokenizers
from training.embedded_pair.draft_quality import DraftQuality, measure_drafts, tokens_per_round
from training.embedded_pair.tasks import TASKS
from training.fitting import machine
from training.fitting.cluster_statistics import auc
from training.fitting.trainer import CPU_TRAINER, Trainer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

BATCH_SIZE = 100


def load(checkpoint: Path) -> "LlamaForCausalLM":
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(str(checkpoint), dtype=torch.float32)


@torch.no_grad()
def generate_greedy(
    model: "LlamaForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    prompts: list[str],
    *,
    max_new_tokens: int = 40,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[list[int]]:
    """Each prompt's output ids, end of sequence included, by transformers' `generate`; reports the number finished."""
    ids = tokenizers.prompt_ids(tokenizer, prompts)
    # By length, so that a batch pads little.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    outputs: dict[int, list[int]] = {}
    for begin in range(0, len(order), BATCH_SIZE):
        members = order[begin : begin + BATCH_SIZE]
        outputs |= zip(members, _generate_batch(model, [ids[i] for i in members], max_new_tokens), strict=True)
        on_progress(len(outputs))
    return [outputs[i] for i in range(len(ids))]


def _generate_batch(model: "LlamaForCausalLM", ids: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, ids))
    padded = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    written = model.generate(inputs=padded, attention_mask=seen, max_new_tokens=max_new_tokens, do_sample=False)
    rows: list[list[int]] = cast(Tensor, written)[:, width:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


ReportRow = dict[str, Any]


def measure_pair(
    out: Path,
    *,
    progress: Progress,
    corpus: Path,
    large: Path,
    small: Path,
    items_per_task: int = 400,
    num_drafts: int = 4,
    trainer: Trainer = CPU_TRAINER,
) -> ReportRow:
    """Writes quality.json, which it returns, and generations.parquet: greedy outputs of both models on the first test
    items of each task.

    Raises ValueError if the corpus has fewer test items of a task.
    """
    rows = _first_items(corpora.load(corpus, "test"), items_per_task)
    models = {"large": load(large), "small": load(small)}
    tokenizer = tokenizers.load(large)
    prompts = [row["prompt"] for row in rows]

    def noted(part: int, note: str) -> Callable[[int], None]:
        return lambda done: progress(part * len(rows) + done, 3 * len(rows), note)

    with trainer.using_threads():
        outputs = {
            name: generate_greedy(model, tokenizer, prompts, on_progress=noted(part, f"{name} model's outputs"))
            for part, (name, model) in enumerate(models.items())
        }
        ids = tokenizers.prompt_ids(tokenizer, prompts)
        drafts = measure_drafts(models["small"], tokenizer, ids, outputs["large"], noted(2, "small model's drafts"))
    texts = {name: tokenizer.batch_decode(written, skip_special_tokens=True) for name, written in outputs.items()}
    generations = [row for name, written in texts.items() for row in _score_outputs(name, rows, written)]
    _write_parquet(out / "generations.parquet", generations)
    report: ReportRow = {
        "items_per_task": items_per_task,
        "models": {name: _mean_scores(generations, name) for name in models},
        "drafting": _drafting_report(drafts, rows, num_drafts),
        "cost": _decode_costs(models),
        "machine": machine.machine_info(),
    }
    (out / "quality.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def exact_match(output: str, reference: str) -> bool:
    """True if the texts are equal apart from white space and case.

    What is served is scored by `serving.workload.metrics.ExactMatch`: by the item's own `match_rule`, case-sensitive.
    """
    return " ".join(output.lower().split()) == " ".join(reference.lower().split())


def _first_items(rows: Sequence[ReportRow], per_task: int) -> list[ReportRow]:
    chosen = [row for task in TASKS for row in [row for row in rows if row["task"] == task][:per_task]]
    if len(chosen) < per_task * len(TASKS):
        raise ValueError(f"items_per_task is {per_task}, the corpus has fewer test items of some task; lower it")
    return chosen


def _score_outputs(model: str, rows: Sequence[ReportRow], texts: Sequence[str]) -> list[ReportRow]:
    rouge_1 = Rouge1()
    return [
        {
            "model": model,
            "id": row["id"],
            "task": row["task"],
            "output": text,
            "reference": row["reference"],
            "exact_match": exact_match(text, row["reference"]),
            "rouge1": rouge_1.score(text, Prompt(row["id"], "", (row["reference"],), row["task"])),
        }
        for row, text in zip(rows, texts, strict=True)
    ]


def _mean_scores(generations: Sequence[ReportRow], model: str) -> ReportRow:
    """Exact match and ROUGE-1 (F) of one model by task, and their means over tasks."""
    of_task = {task: [row for row in generations if row["model"] == model and row["task"] == task] for task in TASKS}
    scores: ReportRow = {
        measure: {task: float(np.mean([row[measure] for row in rows])) for task, rows in of_task.items()}
        for measure in ("exact_match", "rouge1")
    }
    return scores | {f"mean_{measure}": float(np.mean(list(scores[measure].values()))) for measure in scores}


def _drafting_report(drafts: DraftQuality, rows: Sequence[ReportRow], num_drafts: int) -> ReportRow:
    accepted, content = np.concatenate(drafts.accepted), np.concatenate(drafts.is_content)
    doubt = 1 - np.concatenate(drafts.confidence)
    return {
        "tokens": len(accepted),
        "content_tokens": int(content.sum()),
        "acceptance_rate": _mean_or_none(accepted),
        "content_acceptance_rate": _mean_or_none(accepted[content]),
        "content_acceptance_rate_by_task": {task: _content_acceptance(drafts, rows, task) for task in TASKS},
        "auc": auc(doubt, ~accepted),
        "auc_content": auc(doubt[content], ~accepted[content]),
        "num_drafts": num_drafts,
        "tokens_per_round": tokens_per_round(drafts.accepted, num_drafts),
        "exit_agreement_by_layer": np.concatenate(drafts.exit_agreement, axis=1).mean(axis=1).tolist(),
    }


def _content_acceptance(drafts: DraftQuality, rows: Sequence[ReportRow], task: str) -> float | None:
    members = [number for number, row in enumerate(rows) if row["task"] == task]
    return _mean_or_none(np.concatenate([drafts.accepted[i][drafts.is_content[i]] for i in members]))


def _mean_or_none(true: NDArray[np.bool_]) -> float | None:
    return float(true.mean()) if len(true) else None


def _decode_costs(models: "Mapping[str, PreTrainedModel]") -> ReportRow:
    """Parameters and one-thread milliseconds of a decoded token, and the ratios large to small."""
    costs: ReportRow = {
        name: {"num_parameters": machine.num_parameters(model), "decode_ms": machine.decode_ms(model)}
        for name, model in models.items()
    }
    return costs | {
        f"{kind}_ratio": costs["large"][kind] / costs["small"][kind] for kind in ("num_parameters", "decode_ms")
    }


def _write_parquet(path: Path, rows: Sequence[ReportRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def scorecard(report: Mapping[str, Any]) -> str:
    """The report of `measure_pair` as a table for people."""
    large, small = (report["models"][name] for name in ("large", "small"))
    head = f"{report['items_per_task']} test items a task     exact match          ROUGE-1"
    rows = [
        _format_row(task, *(model[metric][task] for metric in ("exact_match", "rouge1") for model in (large, small)))
        for task in large["exact_match"]
    ]
    means = [model[f"mean_{metric}"] for metric in ("exact_match", "rouge1") for model in (large, small)]
    names = f"{'':<24}  large   small       large   small"
    return "\n".join(
        [
            head,
            names,
            *rows,
            _format_row("mean", *means),
            "",
            *_drafting_lines(report["drafting"]),
            *_cost_lines(report),
        ]
    )


def _format_row(name: str, *figures: float) -> str:
    a, b, c, d = figures
    return f"  {name:<22}  {a:5.3f}   {b:5.3f}       {c:5.3f}   {d:5.3f}"


def _share(value: float | None) -> str:
    """An AUC is unknown where every draft is accepted or none is."""
    return "-" if value is None else f"{value:.3f}"


def _drafting_lines(found: Mapping[str, Any]) -> list[str]:
    layers = ", ".join(f"{share:.2f}" for share in found["exit_agreement_by_layer"])
    return [
        f"greedy acceptance       {found['acceptance_rate']:.3f} of all tokens, "
        f"{_share(found['content_acceptance_rate'])} of content tokens",
        f"confidence AUC          {_share(found['auc'])} on all tokens, "
        f"{_share(found['auc_content'])} on content tokens",
        f"tokens a round          {found['tokens_per_round']:.2f} with {found['num_drafts']} drafted",
        f"exit agreement          {layers} after each layer of the small model",
    ]


def _cost_lines(report: Mapping[str, Any]) -> list[str]:
    cost = report["cost"]
    large_ms, small_ms = cost["large"]["decode_ms"], cost["small"]["decode_ms"]
    return [
        f"forward cost            {cost['num_parameters_ratio']:.1f} to 1 by parameters, "
        f"{cost['decode_ms_ratio']:.1f} to 1 measured ({large_ms:.2f} and {small_ms:.2f} ms a token)",
        f"timed on                {report['machine']['processor']}, one thread",
    ]
