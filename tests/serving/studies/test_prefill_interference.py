"""A prompt in chunks beside sessions that decode, by the latency model's own figures."""

import pytest

from serving.deployment.topology import Topology
from serving.hardware.latency import batch_load
from serving.studies.prefill_interference import PrefillInterference
from tests.support.fake_setup import setup

STUDY = PrefillInterference(setup("u_shape"), num_decodes=2, cached_tokens=64, num_steps=4)


def seconds(*spans: tuple[int, int]) -> float:
    """Of one batch of (cached, new) tokens on the cloud's layers."""
    topology = Topology(STUDY.setup, STUDY.setup.pair.cloud.timed_architecture.layers)
    layers = sum(hop.span.end_layer - hop.span.start_layer for hop in topology.hops if hop.node in topology.tiers)
    return topology.cloud_latency(topology.workers[0]).seconds(batch_load(layers, spans))


def test_a_chunk_reads_the_chunks_before_it_and_then_its_session_decodes_too() -> None:
    decodes = [(64, 1)] * 2
    chunks = [seconds(*decodes, (0, 96)), seconds(*decodes, (96, 96)), seconds(*decodes, (192, 8))]
    total_s, ttft_s = STUDY.chunked_s(200, 96)
    assert ttft_s == pytest.approx(sum(chunks))
    assert total_s == pytest.approx(sum(chunks) + seconds(*decodes, (64, 1)))


def test_a_prompt_is_compared_with_one_of_one_token() -> None:
    found = STUDY.by_prompt_length((1, 256))
    assert found["1 tokens"]["relative_to_one_token"] == 1
    assert found["256 tokens"]["relative_to_one_token"] == pytest.approx(
        seconds((64, 1), (64, 1), (0, 256)) / seconds((64, 1), (64, 1), (0, 1))
    )


def test_chunks_save_what_the_whole_prompt_takes_longer() -> None:
    found = STUDY.by_chunk_size(256, (64,))["chunks of 64"]
    whole, chunked = STUDY.chunked_s(256, 256), STUDY.chunked_s(256, 64)
    assert found["saved_s"] == pytest.approx(whole[0] - chunked[0])
    assert found["ttft_relative_to_unchunked"] == pytest.approx(chunked[1] / whole[1])
