from __future__ import annotations

from pathlib import Path

import torch

from training.embedded_pair import corpus, quality, tokenizer


def test_batched_outputs_equal_single_ones(toy_corpus: Path, toy_pair: tuple[Path, Path]) -> None:
    model, words = quality.load(toy_pair[0]), tokenizer.load(toy_pair[0])
    prompts = [row["prompt"] for row in corpus.load(toy_corpus, "test")[:12]]
    finished: list[int] = []
    together = quality.generate_greedy(model, words, prompts, max_new_tokens=8, on_progress=finished.append)
    for prompt, output in zip(prompts, together, strict=True):
        ids = torch.tensor(tokenizer.prompt_ids(words, [prompt]))
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        assert alone[0, ids.shape[1] :].tolist() == output
    assert finished == [12]
