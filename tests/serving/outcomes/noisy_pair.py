"""A random target and a drafter that is a noisy copy of it, so that many drafts are accepted and many rejected."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serving.deployment.queries import LoadedModels, Query
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.messages import GenerationRequest
from serving.workload.prompt import Prompt
from tests.support.fake_setup import Words

VOCABULARY, LAYERS, LIMIT = 61, 2, 20
ENDS = (7,)


class FewWords(Words):
    def __len__(self) -> int:
        return VOCABULARY


def _llama(seed: int, layers: int) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, bos_token_id=1, eos_token_id=7,
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def pair(noise: float = 0.02, layers: int = LAYERS) -> LoadedModels:
    large, small = _llama(3, layers), _llama(3, layers)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in small.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator)
    device, cloud = (TorchEngine(decompose(m, name=name)) for m, name in ((small, "small"), (large, "large")))
    return LoadedModels(device, layers, cloud, layers, FewWords())  # type: ignore[arg-type]


def questions(n: int = 5, devices: int = 2) -> list[Query]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for i in range(n):
        prompt = tuple(torch.randint(8, VOCABULARY, (6 + i,), generator=generator).tolist())
        call = GenerationRequest(f"r{i:05d}", prompt, LIMIT, ENDS)
        found.append(Query(call, Prompt(f"p{i}", "Where?", ("In",), "choice", "attic"), i % devices, None, 0.0, None))
    return found
