"""Prompts of a user's file that are too long, found in the plan: serving finds them when all models are trained."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from serving.engines.models import Checkpoint
from serving.workload.records import file_stamp
from serving.workload.workload import Workload

_FILE = "tokenizer.json"


def check_prompts(workload: Workload, *models: Checkpoint) -> None:
    """Raises ValueError as `Workload.check_dataset`, and for a prompt of a user's file that is above
    `max_prompt_tokens` without the tokens of a chat template.

    Where no tokenizer of `models` is there yet, a prompt has at least as many tokens as words.
    """
    workload.check_dataset()
    if workload.truncate != "refuse" or not isinstance(getattr(workload.dataset, "path", None), Path):
        return
    folders = [Path(model.path) for model in models if model.path is not None]
    rules = next(filter(None, (_rules(path / _FILE, file_stamp(path / _FILE)) for path in folders)), None)
    count, unit = (_token_counter(rules), "tokens") if rules else (_count_words, "words, and at least as many tokens")
    for request in workload.requests(1) if folders else ():
        found, limit = count(request.prompt.text.strip()), workload.max_prompt_tokens
        if found > limit:
            raise ValueError(
                f"{workload.dataset.name} prompt {request.prompt.id}: the prompt has {found} {unit}, the limit is "
                f"{limit}: raise workload.max_prompt_tokens, or cut with workload.truncate=left or middle"
            )


def _count_words(text: str) -> int:
    return len(text.split())


def _token_counter(rules: Any) -> Callable[[str], int]:
    return lambda text: len(rules.encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=4)
def _rules(file: Path, stamp: object) -> Any:
    """A checkpoint's tokenizer, without `transformers`, whose import takes longer than a plan. None where it is not
    there yet, or damaged, of which the loading of the model tells.
    """
    from tokenizers import Tokenizer

    if stamp is None:
        return None
    try:
        found = Tokenizer.from_file(str(file))
    except Exception:  # the library has no class of its own
        return None
    found.no_truncation()
    found.no_padding()
    return found
