"""A chat model of a few thousand random weights."""

import json
from pathlib import Path

import pytest

from tests.support.tiny_models import save_checkpoint

TEMPLATE = (
    "{% for m in messages %}where {{ m['content'] }} <eos>{% endfor %}{% if add_generation_prompt %} it{% endif %}"
)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers, with weights so large that each matters; its words are those of `save_checkpoint`."""
    import torch
    from transformers import AutoModelForCausalLM

    path = save_checkpoint(tmp_path_factory.mktemp("chat") / "model", "where is the red key it a box in on QUESTION", 8)
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6 if weight.dim() > 1 else 1)
    model.save_pretrained(path)
    return path
