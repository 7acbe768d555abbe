"""The corpus stage: items of the six tasks in three splits, and the tokenizer trained on the first items."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from serving.progress import Progress
from training.embedded_pair import tokenizer
from training.embedded_pair.tasks import SPLITS, TASKS, SyntheticWorld, TaskItem, sample_item

TOKENIZER_ITEMS = 6000
"""Training items that the tokenizer is trained on; the vocabulary saturates well before."""


def build(
    out: Path,
    *,
    progress: Progress,
    seed: int = 0,
    train_items: int = 24_000,
    validation_items_per_task: int = 60,
    test_items_per_task: int = 400,
    task_shares: Mapping[str, float] | None = None,
    vocab_size: int = 1536,
) -> None:
    """Writes {train,validation,test}.jsonl and tokenizer/ into `out`.

    `task_shares` are the tasks' weights in the training split. Validation and test have the same number of every task,
    in blocks of one of each, without repeated prompts. No item's key is in two splits. Raises ValueError for an unknown
    task or more held-out items than a task has distinct prompts.
    """
    weights = _checked_shares(DEFAULT_TASK_SHARES if task_shares is None else task_shares)
    world = SyntheticWorld.sample(seed)
    rows = _training_items(train_items, weights, world, random.Random(f"train {seed}"))
    progress(1, 4, "training items")
    _write(out / "train.jsonl", "train", rows)
    for done, (split, count) in enumerate((("validation", validation_items_per_task), ("test", test_items_per_task))):
        _write(out / f"{split}.jsonl", split, _held_out_items(split, count, world, random.Random(f"{split} {seed}")))
        progress(done + 2, 4, f"{split} items")
    texts = (f"{item.prompt} {item.reference}" for item in rows[:TOKENIZER_ITEMS])
    tokenizer.train(texts, vocab_size).save_pretrained(str(out / "tokenizer"))
    progress(4, 4, "tokenizer")


DEFAULT_TASK_SHARES: Mapping[str, float] = {
    "choice": 0.24,
    "facts": 0.08,
    "sentiment": 0.12,
    "summary": 0.10,
    "context": 0.36,
    "sort": 0.10,
}


def load(corpus: Path, split: str) -> list[dict[str, str]]:
    """The rows of one split, in file order: id, task, prompt, reference, answer."""
    if split not in SPLITS:
        raise ValueError(f"corpus has no split {split!r}; the splits are {', '.join(SPLITS)}")
    with (corpus / f"{split}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _checked_shares(shares: Mapping[str, float]) -> Mapping[str, float]:
    unknown = sorted(set(shares) - set(TASKS))
    if unknown:
        raise ValueError(f"task_shares name no such task: {', '.join(unknown)}; the tasks are {', '.join(TASKS)}")
    if not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ValueError(f"task_shares must be at least 0 with one above 0, got {dict(shares)}")
    return shares


def _training_items(
    count: int, shares: Mapping[str, float], world: SyntheticWorld, rng: random.Random
) -> list[TaskItem]:
    names, weights = list(shares), list(shares.values())
    return [sample_item(task, "train", rng, world) for task in rng.choices(names, weights, k=count)]


def _held_out_items(split: str, per_task: int, world: SyntheticWorld, rng: random.Random) -> list[TaskItem]:
    columns = [_distinct_items(task, split, per_task, world, rng) for task in TASKS]
    return [item for block in zip(*columns, strict=True) for item in block]


def _distinct_items(task: str, split: str, count: int, world: SyntheticWorld, rng: random.Random) -> list[TaskItem]:
    if count < 1:
        raise ValueError(f"{count} {split} items a task are wanted; ask for 1 or more")
    found: dict[str, TaskItem] = {}
    for _ in range(20 * count):
        item = sample_item(task, split, rng, world)
        found.setdefault(item.prompt, item)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"task {task} has fewer than {count} distinct {split} prompts; ask for at most {len(found)}")


def _write(path: Path, split: str, items: Iterable[TaskItem]) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for number, item in enumerate(items):
            lines.write(json.dumps({"id": f"{split}-{number}", **asdict(item)}) + "\n")
