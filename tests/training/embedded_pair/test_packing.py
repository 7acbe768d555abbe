from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.embedded_pair import llama
from training.embedded_pair.packing import PackedLoader, PackedSequences, pack

PAIRS = [([1, 3, 10, 4], [11, 2]), ([1, 3, 12, 13, 4], [14, 15, 2]), ([1, 3, 4], [16, 2])]


def test_a_packed_row_has_the_expected_tokens_and_mask() -> None:
    packed = pack(PAIRS[:1] + PAIRS[2:], 12, prompt_loss_weight=0.25)
    assert packed.input_ids.tolist() == [[1, 3, 10, 4, 11, 2, 1, 3, 4, 16, 2, 0]]
    assert packed.document_ids.tolist() == [[1] * 6 + [2] * 5 + [0]]
    assert packed.labels.tolist() == [[3, 10, 4, 11, 2, 0, 3, 4, 16, 2, 0, 0]]
    assert packed.loss_weights.tolist() == [[0.25, 0.25, 0.25, 1, 1, 0, 0.25, 0.25, 1, 1, 0, 0]]


def test_every_document_is_packed_once() -> None:
    lengths = torch.randint(2, 30, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    packed = pack([([100 + i] * (n - 1), [2]) for i, n in enumerate(lengths)], 32, 0.2)
    counts = packed.input_ids.unique(return_counts=True)
    assert dict(zip(*(column.tolist() for column in counts), strict=True)) | {0: 0, 2: 0} == {
        **{100 + i: n - 1 for i, n in enumerate(lengths)},
        0: 0,
        2: 0,
    }
    assert (packed.document_ids > 0).float().mean() > 0.9


def test_the_mask_isolates_documents(toy_pair: tuple[Path, Path]) -> None:
    model, packed = llama.load(toy_pair[1]), pack(PAIRS, 20, 0.2)
    assert len(packed.input_ids) == 1
    with torch.no_grad():
        together = model.logits(model.hidden_states(packed.input_ids, packed.attention_mask(), torch.float32))[0]
        for number in (1, 2, 3):
            own = packed.document_ids[0] == number
            ids = packed.input_ids[0, own][None]
            alone = model.logits(
                model.hidden_states(ids, torch.ones(1, ids.shape[1], ids.shape[1]).tril().bool(), torch.float32)
            )
            torch.testing.assert_close(together[own], alone[0], atol=1e-4, rtol=1e-4)


def test_a_document_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a document of 8 tokens does not fit into a row of 7; raise row_tokens"):
        pack(PAIRS, 7, 0.2)


def numbered(rows: int) -> PackedSequences:
    ids = torch.arange(rows)[:, None]
    return PackedSequences(ids, ids, ids, ids.float())


def test_an_epoch_takes_every_row_once_and_the_next_another_order() -> None:
    batches = list(PackedLoader(numbered(12), batch_size=4, steps=6, seed=0))
    epochs = [torch.cat([batch.input_ids.flatten() for batch in half]).tolist() for half in (batches[:3], batches[3:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1]


def test_a_restored_loader_continues_with_the_next_batch() -> None:
    whole = [batch.input_ids.tolist() for batch in PackedLoader(numbered(12), batch_size=4, steps=7, seed=3)]
    first, second = (PackedLoader(numbered(12), batch_size=4, steps=7, seed=3) for _ in range(2))
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    second.load_state_dict(first.state_dict())
    assert [batch.input_ids.tolist() for batch in second] == whole[4:]


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="a step takes 4 rows, the corpus packs into 3; raise train_items"):
        PackedLoader(numbered(3), batch_size=4, steps=1, seed=0)
