"""Opens what a setup names: models, tokenizer, and the workload as tokens."""

from typing import TYPE_CHECKING, NoReturn

from serving.decoding import Decoding
from serving.messages import INF, Call, Work
from serving.pair import Checkpoint, Pair
from serving.runtimes.runtime import Models, Query
from serving.scores import UNTRAINED, Scorers
from serving.slots.kv_cache import BLOCK_TOKENS
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.engine.blobs import Blobs
    from serving.engine.engine import Engine
    from serving.engine.tokenizer import Tokenizer


def open_models(
    device: Checkpoint,
    cloud: Checkpoint,
    accelerator: str = "cpu",
    scorers: Scorers = UNTRAINED,
    block_tokens: int = BLOCK_TOKENS,
) -> Models:
    """Both models on `accelerator` (a torch device), sharing a store for what they exchange; one CPU thread serves.

    `scorers` are the trained scores that the drafter computes, `block_tokens` the blocks of the KV caches.
    """
    from serving.engine.blobs import Blobs
    from serving.engine.tokenizer import Tokenizer, same_tokenizer

    same_tokenizer(device.where, cloud.where)
    tokenizer, blobs = Tokenizer(cloud.where), Blobs()
    vocabulary = min(len(tokenizer), *(_shape(each)[1] for each in (device, cloud)))
    small = _engine(device, blobs, vocabulary, accelerator, scorers, block_tokens)
    large = _engine(cloud, blobs, vocabulary, accelerator, block_tokens=block_tokens)
    return Models(small, len(small.model.layers), large, len(large.model.layers), tokenizer)


def open_side(
    pair: Pair,
    side: str,
    blobs: "Blobs",
    accelerator: str = "cpu",
    scorers: Scorers = UNTRAINED,
    block_tokens: int = BLOCK_TOKENS,
) -> Models:
    """One model of a pair, the device's or the cloud's; the other one is in another process."""
    from serving.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer(pair.cloud.where)
    (small, rows), (large, others) = _shape(pair.device), _shape(pair.cloud)
    vocabulary = min(len(tokenizer), rows, others)
    engine = _engine(getattr(pair, side), blobs, vocabulary, accelerator, scorers, block_tokens)
    if side == "device":
        return Models(engine, small, Elsewhere(), large, tokenizer)
    return Models(Elsewhere(), small, engine, large, tokenizer)


def depth(checkpoint: Checkpoint) -> int:
    """Layers of a causal LM, without loading it."""
    return _shape(checkpoint)[0]


class Elsewhere:
    """The model of another process: nothing can be run on it here."""

    def execute(self, work: Work) -> NoReturn:
        raise RuntimeError(f"this process does not hold the model that {type(work).__name__} needs")

    def drop(self, session: str, first: int | None) -> None:
        """There is nothing to free."""


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


def _engine(
    checkpoint: Checkpoint,
    blobs: "Blobs",
    vocabulary: int,
    accelerator: str,
    scorers: Scorers = UNTRAINED,
    block_tokens: int = BLOCK_TOKENS,
) -> "Engine":
    import torch

    from serving.engine.engine import Engine
    from serving.engine.model import open_model

    torch.set_num_threads(1)
    model = open_model(
        checkpoint.where, dtype=checkpoint.dtype, device=accelerator, quantization=checkpoint.quantization
    )
    return Engine(model, blobs=blobs, vocabulary=vocabulary, scorers=scorers, block_tokens=block_tokens)


def _shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """(layers, rows of the head), read from the configuration."""
    from transformers import AutoConfig

    from serving.engine.model import check_checkpoint

    check_checkpoint(checkpoint.where)
    config = AutoConfig.from_pretrained(checkpoint.where)
    return int(config.num_hidden_layers), int(config.vocab_size)
