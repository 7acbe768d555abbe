"""Prompts that are too long are found in the plan: by their words before there is a tokenizer, by their tokens then."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from serving.deployment.prompt_lengths import check_prompts
from serving.engines.models import Checkpoint
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload
from tests.support.tiny_tokenizers import byte_level


@dataclass(frozen=True)
class Lines:
    """A data set of the lines of a file."""

    path: Path

    name: ClassVar[str] = "lines"
    metrics: ClassVar[tuple[()]] = ()
    measures_quality_of: ClassVar[Any] = "none"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"l{n}", line, (), "t") for n, line in enumerate(self.path.read_text().splitlines(), 1)]


class PendingCheckpoint:
    """As a plan has a model that a stage will train: a folder that may not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return PendingCheckpoint(tmp_path / "model")


def lines(folder: Path, *texts: str, **how: Any) -> Workload:
    (folder / "lines.txt").write_text("\n".join(texts))
    limits = {"num_prompts": len(texts), "max_prompt_tokens": 8} | how
    return Workload(dataset=Lines(folder / "lines.txt"), **limits)


def test_a_prompt_of_more_words_than_tokens_are_allowed_is_refused_before_there_is_a_tokenizer(
    tmp_path: Path, model: Any
) -> None:
    workload = lines(tmp_path, "where is the key?", "one two three four five six seven eight nine")
    with pytest.raises(ValueError, match=r"^lines prompt l2: the prompt has 9 words, .*, the limit is 8: raise"):
        check_prompts(workload, model)
    check_prompts(lines(tmp_path, "one two three four five six seven eight"), model)


def test_a_prompt_is_counted_in_tokens_where_the_tokenizer_is_there(tmp_path: Path, model: Any) -> None:
    byte_level().save_pretrained(model.path)
    with pytest.raises(ValueError, match=r"^lines prompt l1: the prompt has 9 tokens, the limit is 8: raise"):
        check_prompts(lines(tmp_path, "123456789"), model)  # one token for a digit
    check_prompts(lines(tmp_path, " 12345678 "), model)


def test_what_is_cut_or_no_file_of_the_user_is_not_counted(tmp_path: Path, model: Any) -> None:
    long = "one two three four five six seven eight nine"
    check_prompts(lines(tmp_path, long, truncate="left"), model)
    check_prompts(lines(tmp_path, long), Checkpoint(hub="a/b"))  # of which nothing is here
    check_prompts(lines(tmp_path, long))


def test_a_damaged_tokenizer_is_left_to_the_loading_of_its_model(tmp_path: Path, model: Any) -> None:
    model.path.mkdir()
    (model.path / "tokenizer.json").write_text("{")
    check_prompts(lines(tmp_path, "where is the key?"), model)
