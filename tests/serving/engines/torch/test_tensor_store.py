"""The store of tensors that travel by id."""

import pytest
import torch

from serving.engines.torch.tensor_store import TensorStore
from serving.messages import TensorRef


def test_a_tensor_is_read_repeatedly_and_taken_once():
    blobs = TensorStore()
    blob = blobs.put(torch.ones(3), "a", 6)
    assert blob.nbytes == 6
    assert blobs.get(blob) is blobs.get(blob)
    assert blobs.take(blob).tolist() == [1, 1, 1]
    assert (len(blobs), blobs.held_nbytes) == (0, 0)
    with pytest.raises(KeyError, match="tensor 'a/1' is not in the store"):
        blobs.get(blob)


def test_ids_differ_even_for_one_owner():
    blobs = TensorStore()
    assert len({blobs.put(torch.ones(1), "a", 2).id for _ in range(5)}) == 5


def test_a_full_store_discards_the_oldest_tensors_but_never_the_newest():
    blobs = TensorStore(capacity_nbytes=4000)
    first, second, third = (blobs.put(torch.zeros(4), "a", 8) for _ in range(3))
    assert len(blobs) == 2
    with pytest.raises(KeyError, match="fell out of the 4000 bytes"):
        blobs.get(first)
    blobs.get(second)
    large = blobs.put(torch.zeros(1000), "a", 2000)
    assert blobs.get(large).shape == (1000,)
    assert len(blobs) == 1
    with pytest.raises(KeyError, match="a/3"):
        blobs.take(third)


def test_a_tensor_from_another_process_keeps_its_id_and_replaces_an_older_one():
    blobs = TensorStore()
    blob = TensorRef("hidden/elsewhere/7", 4)
    blobs.add(blob, torch.zeros(1))
    blobs.add(blob, torch.ones(1))
    assert blobs.take(blob).tolist() == [1]
    blobs.discard((blob,))
    assert blobs.held_nbytes == 0


def test_discarding_an_owner_removes_received_tensors_too() -> None:
    """Under its own name, and under the one that a transport gave it."""
    blobs = TensorStore()
    blobs.put(torch.zeros(4), "odds/s", 8)
    blobs.add(TensorRef("@device-0/odds/s/7", 8), torch.zeros(4))
    other = blobs.put(torch.zeros(4), "odds/s2", 8)
    blobs.discard_owner("odds/s")
    assert len(blobs) == 1
    assert blobs.get(other) is not None
