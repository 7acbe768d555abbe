"""Tensors travel bit for bit with their `TensorRef`s, and one host cannot fill or read another's share of a store."""

import struct
from collections import Counter
from dataclasses import replace

import pytest
import torch

from serving.engines.torch.sampling import decode_probs, distribution, encode_probs
from serving.engines.torch.tensor_store import TensorStore
from serving.messages import Hop, Request, SamplingParams, Span, TensorRef
from serving.transport import tensors
from serving.transport.connection import ReceivedTensors
from serving.transport.frame import Hello, encode_message
from serving.transport.limits import PeerExpectations, ProtocolError
from tests.serving.transport.transport_peers import (
    FAST,
    FakeSink,
    dialling,
    ending,
    hello,
    listening,
    raw,
    request,
    run_scenario,
)

MIDDLE = (Hop("cloud", Span(2, 6)),)


def through_a_frame(tensor: torch.Tensor) -> tensors.PackedTensor:
    packed = tensors.pack(tensor)
    (found,) = tensors.split((packed.header,), memoryview(bytes(packed.data)))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 3), (1, 2, 3, 4)])
def test_tensors_round_trip_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    made = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    for tensor in (made, made.transpose(0, -1)):
        wire = through_a_frame(tensor)
        found = tensors.unpack("t", wire)
        assert found.dtype == dtype
        assert torch.equal(found, tensor)


def test_an_unsupported_dtype_names_the_supported_ones() -> None:
    with pytest.raises(TypeError, match="float64 cannot travel; convert it to one of float32"):
        tensors.pack(torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_refused(value: float) -> None:
    with pytest.raises(ProtocolError, match="infinite or not a number"):
        tensors.unpack("t", tensors.pack(torch.tensor([1.0, value])))


@pytest.mark.parametrize("probs", [[0.0, 0.0], [-0.5, 1.5]])
def test_an_invalid_dense_distribution_is_refused(probs: list[float]) -> None:
    store = TensorStore()
    with pytest.raises(ProtocolError, match="probabilities"):
        ReceivedTensors(store, 100).add([(TensorRef("b", 4), tensors.pack(torch.tensor(probs)))])
    assert not len(store)


@pytest.mark.parametrize("vocabulary", [97, 32_000, 128_256])
def test_a_sparse_distribution_is_accepted_as_packed(vocabulary: int) -> None:
    sampling = SamplingParams(1.0, 10, 1.0, 0)
    probs = encode_probs(distribution(torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)), sampling))
    wire = through_a_frame(probs)
    tensors.check_sparse_probs("t", wire, vocabulary)
    tensors.check_sparse_probs("t", wire, None)
    assert torch.equal(tensors.unpack("t", wire), probs)


def hidden(ref: TensorRef, n: int) -> Request:
    rows = replace(request(n=n).slice, tokens=(), num_drafts=0, hidden_states=ref)
    return Request(0, rows, MIDDLE, 0, ("cloud-0",), "device-0")


def test_hidden_states_and_draft_probs_reach_the_other_store() -> None:
    async def scenario() -> None:
        cloud, here, there = FakeSink(), TensorStore(), TensorStore()
        states, probs = torch.randn(3, 8).half(), torch.rand(10).half()
        hidden_ref, probs_ref = here.put(states, "hidden/2/s", 48), here.put(probs, "probs/s", 20)
        async with (
            listening(cloud, tensor_store=there) as (_, address),
            dialling(FakeSink(), address, tensor_store=here) as client,
        ):
            client.send("device-0", "cloud-0", hidden(hidden_ref, 3))
            found = (await cloud.received())[2]
            assert isinstance(found, Request)
            assert found.slice.hidden_states == TensorRef(f"@device-0/{hidden_ref.id}", 48)
            assert torch.equal(there.take(found.slice.hidden_states), states)
            with pytest.raises(KeyError):
                here.get(hidden_ref)  # hidden states are sent once
            for _ in range(2):  # draft probabilities are kept, because a request may be resent
                rows = replace(
                    request().slice, rule="sample", draft_probs=(probs_ref,), sampling=SamplingParams(1.0, 0, 1.0, 0)
                )
                client.send("device-0", "cloud-0", replace(request(), slice=rows))
                found = (await cloud.received())[2]
                assert isinstance(found, Request)
                assert torch.equal(there.get(found.slice.draft_probs[0]), probs)

    run_scenario(scenario)


def test_sparse_draft_probs_reach_the_other_store_unchanged() -> None:
    async def scenario() -> None:
        cloud, here, there = FakeSink(), TensorStore(), TensorStore()
        sampling = SamplingParams(1.0, 5, 1.0, 0)
        probs = encode_probs(distribution(torch.randn(1000, generator=torch.Generator().manual_seed(1)), sampling))
        sent = here.put(probs, "probs/s", probs.nbytes)
        async with (
            listening(cloud, tensor_store=there, expectations=PeerExpectations(vocab_size=1000)) as (_, address),
            dialling(FakeSink(), address, tensor_store=here) as client,
        ):
            rows = replace(request().slice, rule="sample", draft_probs=(sent,), sampling=sampling)
            client.send("device-0", "cloud-0", replace(request(), slice=rows))
            found = (await cloud.received())[2]
            assert isinstance(found, Request)
            arrived = there.get(found.slice.draft_probs[0])
            assert arrived.shape == (5, 4)
            assert torch.equal(decode_probs(arrived, 1000), decode_probs(probs, 1000))

    run_scenario(scenario)


def test_hidden_states_of_undeliverable_messages_are_discarded() -> None:
    async def scenario() -> None:
        here = TensorStore()
        async with (
            listening(FakeSink(), tensor_store=TensorStore()) as (_, address),
            dialling(FakeSink(), address, tensor_store=here) as client,
        ):
            client.send("device-0", "cloud-9", hidden(here.put(torch.ones(3, 8), "h", 48), 3))
            assert not len(here)

    run_scenario(scenario)


def test_a_host_fills_only_its_own_share_of_the_store() -> None:
    async def scenario() -> None:
        cloud, store = FakeSink(), TensorStore()
        own = store.put(torch.ones(4), "own", 8)
        limits = replace(FAST, message_nbytes=100_000, tensors_nbytes=100_000, linger_s=0.05)
        async with listening(cloud, tensor_store=store, limits=limits) as (_, address):
            packed = [tensors.pack(torch.ones(1, 10_000))]
            frames = [
                encode_message("device-0", "cloud-0", hidden(TensorRef(f"flood/{i}", 1), 1), packed) for i in range(20)
            ]
            async with raw(address, Hello(("device-0",), sends_tensors=True).encoded, *frames):
                for _ in range(20):
                    await cloud.received()
                assert own.id in store._tensors
                assert len(store) == 3
        assert len(store) == 1

    run_scenario(scenario)


def test_a_stopped_server_holds_no_tensors_though_a_stream_has_not_ended() -> None:
    async def nothing(_: float) -> None: ...

    async def scenario() -> None:
        cloud, store = FakeSink(), TensorStore()
        limits = replace(FAST, linger_s=60.0)
        async with listening(cloud, tensor_store=store, limits=limits) as (server, address):
            frame = encode_message(
                "device-0", "cloud-0", hidden(TensorRef("a/0", 1), 1), [tensors.pack(torch.ones(1, 8))]
            )
            async with raw(address, Hello(("device-0",), sends_tensors=True).encoded, frame):
                await cloud.received()
                assert len(store) == 1
                stop, server._server.stop = server._server.stop, nothing
                await server.stop(0.2)
                server._server.stop = stop
                assert len(store) == 0
        assert [await cloud.news(), await cloud.news()] == [("restored", ("device-0",)), ("lost", ("device-0",))]
        assert cloud.quiet

    run_scenario(scenario)


def test_the_smallest_tensors_count_with_what_holds_them() -> None:
    """A distribution of one token has 4 bytes, and takes some 1,400."""
    store = TensorStore()
    received = ReceivedTensors(store, 100_000)
    one_token = tensors.PackedTensor(tensors.TensorHeader("int8", (1, 4)), struct.pack("<He", 1, 1.0))
    for i in range(200):
        received.add([(TensorRef(f"flood/{i}", 4), one_token)])
    assert len(store) <= 100_000 // 1400
    received.discard()
    assert (len(store), store.held_nbytes) == (0, 0)


def test_a_full_share_is_not_looked_through_at_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = TensorStore(), Counter[str]()
    holds = store.holds
    monkeypatch.setattr(store, "holds", lambda ref: asked.update([ref.id]) or holds(ref))
    received = ReceivedTensors(store, 100_000)
    small = tensors.pack(torch.ones(1, 25))
    for i in range(2_000):
        received.add([(TensorRef(f"unused/{i}", 100), small)])
    assert store.held_nbytes <= 100_000
    assert 0 < max(asked.values()) <= 9, "once for each eighth of the share"


def test_tensors_that_the_engine_has_used_do_not_count() -> None:
    store = TensorStore()
    received = ReceivedTensors(store, 100_000)
    ten_kb = tensors.pack(torch.ones(1, 2_500))
    received.add([(TensorRef("waiting", 10_000), ten_kb)])
    for i in range(50):
        received.add([(TensorRef(f"used/{i}", 10_000), ten_kb)])
        store.discard((TensorRef(f"used/{i}", 10_000),))
    assert store.holds(TensorRef("waiting", 10_000))
    for i in range(50):
        received.add([(TensorRef(f"unused/{i}", 10_000), ten_kb)])
    assert not store.holds(TensorRef("waiting", 10_000))
    assert store.held_nbytes <= 100_000


def test_hosts_must_agree_whether_tensors_travel() -> None:
    async def scenario() -> None:
        async with listening(FakeSink(), tensor_store=TensorStore()) as (_, address), raw(address, hello("d")) as call:
            code, text = await ending(call)
            assert code == "FAILED_PRECONDITION"
            assert "without tensors" in text

    run_scenario(scenario)
