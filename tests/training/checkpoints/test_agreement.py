"""Hits and rounds, counted by hand; a model along its own text; what a pass over part of the weights counts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from serving.engines.models import Checkpoint
from serving.engines.torch.draft_heads import init_medusa_heads
from serving.engines.torch.model import load_model
from serving.learned.medusa import WEIGHTS, MedusaHeads
from serving.policy.slots.draft import LookupDraft
from serving.progress import silent
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.workload import Workload
from tests.support.conf_files import architecture
from training.checkpoints.agreement import read, rows
from training.checkpoints.drafters import (
    Answer,
    Drafted,
    LookupDrafter,
    MedusaDrafter,
    ModelDrafter,
    accepted_drafts,
    accepted_nodes,
)
from training.checkpoints.stages import measure_agreement, record_answers


@pytest.mark.parametrize(
    ("hits", "rounds"),
    [
        ("", 0),
        ("....", 4),
        ("xxxx", 1),
        ("xxxxxxxxxx", 2),  # four and the verdict's own, twice
        ("xx.xxxx.", 2),  # the missed token is the verdict's
        (".xxxxx.", 3),
    ],
)
def test_a_round_takes_the_hits_in_a_row_and_the_verdicts_own_token(hits: str, rounds: int) -> None:
    predicted = [int(hit == "x") for hit in hits]
    assert Drafted(accepted_drafts(predicted, [1] * len(hits), gamma=4)).num_rounds == rounds


def test_drafts_are_read_off_the_text() -> None:
    answer = Answer(prompt=(1, 2, 3, 4, 5, 9), tokens=(2, 3, 4, 5, 7, 8))
    (found,) = LookupDrafter(draft=LookupDraft(4)).along([answer], 4, silent)
    assert found.accepted == (0, 3, 2, 1, 0, 0)  # 3, 4, 5 once followed 2
    assert found.num_rounds == 3  # 2 by the verdict; 3, 4, 5 and the verdict's 7; 8


def test_tokens_a_pass_count_what_drafts_read() -> None:
    cells = rows([Drafted((4, 3, 2, 1, 1)), Drafted((0, 1, 0))], weights_read=2.0)
    means = {name: float(np.mean(cell)) for name, cell in cells["drafter"]["all"].items()}
    assert means == pytest.approx({"agreement": 6 / 8, "tokens_per_round": 8 / 3, "tokens_per_pass": 8 / 9})


@pytest.fixture(scope="module")
def answers(toy_pair: tuple[Path, Path], toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    workload = Workload(
        dataset=TinyTasks(corpus=toy_corpus, split="validation"),
        num_prompts=4,
        max_prompt_tokens=192,
        max_new_tokens=12,
    )
    record_answers(folder, progress=silent, model=Checkpoint(path=toy_pair[0]), workload=workload)
    return folder


def drafter(checkpoint: Path, layers: int | None = None) -> ModelDrafter:
    timed = architecture("llama2_7b")
    return ModelDrafter(model=Checkpoint(path=checkpoint), architecture=timed, target_architecture=timed, layers=layers)


def test_a_model_agrees_with_itself_and_less_without_its_last_layers(
    answers: Path, toy_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    measure_agreement(tmp_path, progress=silent, answers=answers, drafter=drafter(toy_pair[0]))
    own = json.loads((tmp_path / "metrics.json").read_text())
    assert own["drafter/all/agreement"] == 1.0
    assert own["drafter/all/weights_share"] == 1.0
    measure_agreement(tmp_path, progress=silent, answers=answers, drafter=drafter(toy_pair[0], layers=2))
    early = json.loads((tmp_path / "metrics.json").read_text())
    assert early["drafter/all/agreement"] < 1.0
    assert early["drafter/all/weights_share"] < 0.2
    assert 1 <= early["drafter/all/tokens_per_round"] < own["drafter/all/tokens_per_round"]


def test_a_tree_is_accepted_along_its_longest_path_that_the_answer_takes() -> None:
    trees, parents = [(5, 6, 7, 1), (1, 2, 3, 4), (9, 9, 2, 9)], (-1, 0, -1, 2)
    assert accepted_nodes(trees, parents, (7, 1, 2)) == (2, 2, 1)  # 7, 1; 1, 2; 2, behind which the answer ends


def test_heads_that_know_nothing_propose_the_token_before(
    answers: Path, toy_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Untrained heads compute the target's own logits at the state before the last known token."""
    heads = init_medusa_heads(load_model(toy_pair[0]), 2)
    save_file({name: value.clone() for name, value in heads.state_dict().items()}, tmp_path / WEIGHTS)
    medusa = MedusaHeads(num_heads=2, tree=((0,), (0, 0)), num_parameters=1_000_000, folder=str(tmp_path))
    drafter = MedusaDrafter(
        model=Checkpoint(path=toy_pair[0]), medusa=medusa, target_architecture=architecture("llama2_7b")
    )
    known = read(answers)
    found = drafter.along(known, 4, silent)
    assert drafter.num_forwards(4) == 1
    assert drafter.weights_share == pytest.approx(1e6 / 6.74e9, rel=0.01)
    for answer, drafted in zip(known, found, strict=True):
        tokens = (*answer.tokens, -1, -1)
        for place in range(1, len(answer.tokens)):
            again = [tokens[place + i] == tokens[place - 1] for i in range(2)]
            assert drafted.accepted[place] == [*again, False].index(False)


def test_damaged_answers_and_too_many_layers_are_said(toy_pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"answers.json cannot be read \(KeyError\('prompt'\)\); record again"):
        read(tmp_path)
    with pytest.raises(ValueError, match=r"drafter.model has an adapter, which says how many layers run"):
        replace(drafter(toy_pair[0], layers=2), model=Checkpoint(path=toy_pair[0], adapter=tmp_path))
    with pytest.raises(ValueError, match=r"drafter.layers is 33; llama2_7b has 32"):
        drafter(toy_pair[0], layers=33)
