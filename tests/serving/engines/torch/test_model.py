"""Loading checkpoints, and the errors of unusable ones."""

import json

import pytest
import torch
import transformers

from serving.engines.checkpoint_architecture import check_checkpoint
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import check_loadable, decompose, load_model
from serving.messages import DraftStopRule, DraftWork

PROMPT = (5, 17, 40, 8)


@pytest.fixture
def saved(llama, tmp_path):
    path = tmp_path / "llama"
    llama.save_pretrained(path)
    return path


def test_a_loaded_checkpoint_writes_the_models_text(llama, saved):
    engine = TorchEngine(load_model(saved))
    out = llama.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(12)))[0].tokens == tuple(out[0, 4:].tolist())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_models_run_and_keep_half_precision_caches(saved, dtype):
    model = load_model(saved, dtype=dtype)
    engine = TorchEngine(model)
    drafted = engine.execute(
        DraftWork("a", 0, PROMPT, DraftStopRule(5), requested_scores=("confidence", "importance"))
    )[0]
    assert model.dtype in (torch.bfloat16, torch.float16)
    assert engine.cache.nbytes == 2 * 4 * 16 * 2 * 8 * 2  # one block of 16 tokens
    assert all(0 < score <= 1.01 for score in drafted.scores["confidence"])


@pytest.mark.parametrize(
    ("variant", "windows"),
    [
        ("llama", (None,) * 4),
        ("qwen2_mixed", (None, None, 8, 8)),
        ("mistral", (8,) * 4),
        ("mistral_open", (None,) * 4),
        ("phi3", (8,) * 4),
        ("neox", (None,) * 4),
    ],
)
def test_the_sliding_window_of_each_layer_is_read(causal, variant, windows):
    assert decompose(causal(variant)).sliding_windows == windows


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no checkpoint at .*/nothing; give a directory"):
        load_model(tmp_path / "nothing")


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not a checkpoint that transformers can open"):
        load_model(tmp_path)


def test_models_that_are_not_causal_are_refused(tmp_path):
    transformers.BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BertForMaskedLM, which is not a causal LM"):
        check_loadable(tmp_path)


def test_other_architectures_are_refused_with_those_that_work(tmp_path):
    transformers.GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"architecture 'gpt2'.*it knows llama, qwen2, qwen3, mistral, phi3, gpt_neox"):
        check_loadable(tmp_path)


@pytest.mark.parametrize("config", [transformers.BertConfig, transformers.GPT2Config])
def test_transformers_and_the_configuration_alone_are_refused_alike(tmp_path, config):
    config(architectures=["BertForMaskedLM"] * (config is transformers.BertConfig)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds BertForMaskedLM|is of architecture 'gpt2'") as loaded:
        check_loadable(tmp_path)
    with pytest.raises(ValueError, match=r"holds BertForMaskedLM|is of architecture 'gpt2'") as read:
        check_checkpoint(tmp_path, "none")
    assert str(loaded.value) == str(read.value)


def test_damaged_weights_are_named(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])
    with pytest.raises(ValueError, match="cannot be read"):
        load_model(saved)


def test_a_damaged_configuration_is_named(saved):
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not a checkpoint that transformers can open"):
        check_loadable(saved)


def test_missing_weights_are_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    config["num_hidden_layers"] = 6
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="lacks weights"):
        load_model(saved)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused(saved):
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        load_model(saved, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_same_tokens_are_written(llama, saved):
    engine = TorchEngine(load_model(saved, device="cuda"))
    out = llama.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    work = DraftWork("a", 0, PROMPT, DraftStopRule(12), requested_scores=("confidence", "importance"))
    assert engine.execute(work)[0].tokens == tuple(out[0, 4:].tolist())


def test_unknown_devices_are_refused(saved):
    with pytest.raises(ValueError, match="device 'gpu' is not one of torch's; use 'cpu' or 'cuda'"):
        load_model(saved, device="gpu")


@pytest.mark.parametrize("asked", [0, -1, 5])
def test_a_number_of_layers_that_the_checkpoint_does_not_have_is_refused(saved, asked):
    with pytest.raises(ValueError, match=rf"has 4 layers; num_layers is {asked}, give 1 to as many"):
        load_model(saved, num_layers=asked)
    assert len(load_model(saved, num_layers=4).layers) == 4


def test_unknown_precisions_are_refused(saved):
    with pytest.raises(ValueError, match="dtype 'fp8' is not known; choose one of fp32, bf16, fp16"):
        load_model(saved, dtype="fp8")
