"""SLED's text against the large model's own greedy text, which `transformers` alone computes, token for token."""

from pathlib import Path
from typing import Any

from pipeline import api

PROMPTS = 240
LIMIT_TOKENS = 48


def main(large: Path, corpus: Path) -> bool:
    with api.composed("policy=sled", "tracking.uri=none", f"workload.num_prompts={PROMPTS}") as cfg:
        report = api.run(cfg)
    assert report is not None
    served = {request.prompt_id: list(request.tokens) for request in report.records.requests}
    own = _reference_texts(large, corpus, set(served))
    equal = sum(own[name] == tokens for name, tokens in served.items())
    print(f"lossless: sled equals generate token for token on {equal} of {len(served)} held-out prompts")
    return equal == len(served)


def _reference_texts(large: Path, corpus: Path, wanted: set[str]) -> dict[str, list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from serving.workload.datasets.tiny import TinyTasks

    tokenizer = AutoTokenizer.from_pretrained(large)
    model = AutoModelForCausalLM.from_pretrained(large, dtype=torch.float32).eval()
    return {p.id: _generate(model, tokenizer, p.text) for p in TinyTasks(corpus=corpus).prompts() if p.id in wanted}


def _generate(model: Any, tokenizer: Any, text: str) -> list[int]:
    turn = [{"role": "user", "content": text}]
    asked = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**asked, max_new_tokens=LIMIT_TOKENS, do_sample=False)
    new: list[int] = out[0, asked["input_ids"].shape[1] :].tolist()
    return new
