"""Prompts of a user's file that are too long, found in the plan: serving finds them when all models are trained."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from serving.engines.models import Checkpoint
from serving.workload.records import file_stamp
from serving.workload.workload import Workload

_FILE = "tokenizer.json"


def check_prompts(workload: Workload, *models: Checkpoint, with_text: bool = False) -> None:
    """Raises ValueError as `Workload.check_dataset(with_text)`, and for a prompt of a user's file that is above
    `max_prompt_tokens` without the tokens of a chat template.

    Where no tokenizer of `models` is there yet, a prompt has at least as many tokens as words.
    """
    workload.check_dataset(with_text=with_text)
    if workload.truncate != "refuse" or not isinstance(getattr(workload.dataset, "path", None), Path):
        return
    files = [Path(model.path) / _FILE for model in models if model.path is not None]
    known = next(((file, stamp) for file in files if _rules(file, stamp := file_stamp(file))), None)
    unit = "tokens" if known else "words, and at least as many tokens"
    for request in workload.requests(1) if files else ():
        text, limit = request.prompt.text.strip(), workload.max_prompt_tokens
        found = _num_tokens(text, *known) if known else len(text.split())
        if found > limit:
            raise ValueError(
                f"{workload.dataset.name} prompt {request.prompt.id}: the prompt has {found} {unit}, the limit is "
                f"{limit}: raise workload.max_prompt_tokens, or cut with workload.truncate=left or middle"
            )


@lru_cache(maxsize=4096)
def _num_tokens(text: str, file: Path, stamp: object) -> int:
    """Kept, because several stages of each job of a sweep ask the same."""
    return len(_rules(file, stamp).encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=4)
def _rules(file: Path, stamp: object) -> Any:
    """A checkpoint's tokenizer, read without `transformers`: that import takes longer than a plan. None if the file is
    not there yet, or is damaged: loading the model raises the error then.
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
