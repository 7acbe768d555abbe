"""Opens what a setup names: models, tokenizer, and the workload as tokens."""

from typing import TYPE_CHECKING

from serving.decoding import Decoding
from serving.messages import INF, Call
from serving.pair import Checkpoint
from serving.runtimes.runtime import Models, Query
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.engine.tokenizer import Tokenizer


def open_models(device: Checkpoint, cloud: Checkpoint, accelerator: str = "cpu") -> Models:
    """Both models on `accelerator` (a torch device), sharing a store for what they exchange; one CPU thread serves."""
    import torch

    from serving.engine.blobs import Blobs
    from serving.engine.engine import Engine
    from serving.engine.model import open_model
    from serving.engine.tokenizer import Tokenizer, same_tokenizer

    torch.set_num_threads(1)
    same_tokenizer(device.where, cloud.where)
    tokenizer, blobs = Tokenizer(cloud.where), Blobs()
    small = open_model(device.where, dtype=device.dtype, device=accelerator)
    large = open_model(cloud.where, dtype=cloud.dtype, device=accelerator)
    vocabulary = min(len(tokenizer), small.vocabulary, large.vocabulary)
    return Models(
        Engine(small, blobs=blobs, vocabulary=vocabulary), len(small.layers),
        Engine(large, blobs=blobs, vocabulary=vocabulary), len(large.layers),
        tokenizer,
    )  # fmt: skip


def queries(workload: Workload, decoding: Decoding, seed: int, devices: int, tokenizer: "Tokenizer") -> list[Query]:
    """The workload's requests as tokens; raises ValueError that names a prompt which does not fit."""
    sampling = decoding.sampling(seed)
    found = []
    for asked in workload.calls(devices):
        tokens = workload.encode(asked, tokenizer.hf).tokens
        rate = asked.slo.tokens_per_s if asked.slo else 0.0
        ttft_s = asked.slo.ttft_s if asked.slo and asked.slo.ttft_s else INF
        call = Call(f"r{asked.index:05d}", tokens, asked.max_new_tokens, tokenizer.ends, sampling, rate, ttft_s)
        found.append(Query(call, asked.prompt, asked.device, asked.at_s, asked.think_s, asked.slo))
    return found
