"""`backend=llama_cpp` from configuration to answers; unsupported settings are refused before any work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.decoding import Decoding
from serving.deployment.model_loading import load_models
from serving.deployment.setup import Setup
from serving.engines.llama_cpp.engine import LlamaCppEngine
from serving.engines.models import ModelConfig, ModelPair
from serving.engines.tokenizer import Tokenizer
from serving.learned.router import TokenRouter
from serving.policy.policy import EngineRequirements
from serving.policy.slots.routed_offload import RoutedOffload
from serving.runtimes import emulated
from tests.serving.engines.remote.test_served_policies import queries
from tests.support.conf_files import architecture
from tests.support.fake_setup import pair as torch_pair
from tests.support.fake_setup import setup
from tests.support.tiny_models import save_byte_level

CLOUD = "model.cloud.backend=llama_cpp"


def on_llama_cpp(**settings: Any) -> ModelConfig:
    """Its GGUF file is one that a stage will write."""
    timed = architecture("tinyllama_1_1b")
    given = {"timed_architecture": timed, "hub": "a/small", "backend": "llama_cpp", "gguf": "${stage:device_gguf}"}
    return ModelConfig(**{**given, **settings})


def both_on_llama_cpp(policy: str, **override: Any) -> Setup:
    return setup(policy, pair=ModelPair(on_llama_cpp(), on_llama_cpp()), override=override)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gguf": None}, "backend=llama_cpp needs gguf, a GGUF file or the folder"),
        (
            {"adapter": Path("a/b")},
            "model: backend=llama_cpp runs a GGUF file as it is, and policy/draft=adapter or tree_adapter .HAT. drafts "
            "with .* an adapter, which only torch runs; choose policy/draft=window with policy/placement=cloud and ",
        ),
        ({"tensor_parallel": 2}, "tensor_parallel is 2; set tensor_parallel=1, or backend=torch"),
    ],
)
def test_settings_that_llama_cpp_cannot_run_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_llama_cpp(**settings)


@pytest.mark.parametrize("option", ["packed_weights", "cuda_graphs"])
def test_options_of_torch_are_refused_where_it_runs_no_model(option: str) -> None:
    off = Decoding(**{option: False})
    with pytest.raises(
        ValueError, match=rf"decoding\.{option} is false, and has no effect: .* torch runs, and policy sl"
    ):
        replace(both_on_llama_cpp("sled"), decoding=off).check_decoding_used()
    beside = ModelPair(on_llama_cpp(backend="torch", gguf=None), on_llama_cpp())
    setup("sled", pair=beside, decoding=off).check_decoding_used()
    with pytest.raises(ValueError, match=r"policy cloud_centric has none here"):
        replace(setup("cloud_centric", pair=beside), decoding=off).check_decoding_used()
    both_on_llama_cpp("sled").check_decoding_used()


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=r"gguf is .*model\.bin; give a file that ends with \.gguf"):
        on_llama_cpp(gguf=tmp_path / "model.bin")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gguf is .*small\.gguf, and there is no such file; give a GGUF file"):
        on_llama_cpp(gguf=tmp_path / "small.gguf")
    with pytest.raises(ValueError, match=r"gguf is .*, which holds no model\.gguf; give a GGUF file"):
        on_llama_cpp(gguf=tmp_path)
    (tmp_path / "model.gguf").touch()
    assert on_llama_cpp(gguf=tmp_path).gguf_file == on_llama_cpp(gguf=tmp_path / "model.gguf").gguf_file


def test_a_missing_library_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engines.models.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"backend=llama_cpp needs cyllama, .* install tandem-llm\[llama_cpp\]"):
        on_llama_cpp()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("synera", r"policy.offload=.* reads importance, and model.device.backend=llama_cpp .* shows no attention"),
        ("u_shape", rf"policy.placement=UShapedPlacement splits the cloud's model, and {CLOUD} runs the cloud's mod"),
        ("sled", None),
        ("cloud_centric", None),
    ],
)
def test_policies_that_need_what_llama_cpp_does_not_show_are_refused(policy: str, message: str | None) -> None:
    if message is None:
        assert both_on_llama_cpp(policy).uses_target
    else:
        with pytest.raises(ValueError, match=message):
            both_on_llama_cpp(policy)


def test_scores_of_hidden_states_are_refused() -> None:
    layer = np.ones((1, 32), np.float32), np.zeros(1, np.float32)
    router = TokenRouter((layer,), np.zeros(32, np.float32), np.ones(32, np.float32))
    with pytest.raises(ValueError, match=r"RoutedOffload has a trained score .* hidden states, .*backend=llama_cpp"):
        both_on_llama_cpp("sled", offload=RoutedOffload(router))


@pytest.fixture(scope="module")
def pair(checkpoint: Path, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A drafter of two layers on torch, and the tiny Llama of three on llama.cpp."""
    pytest.importorskip("cyllama")
    small = save_byte_level(tmp_path_factory.mktemp("small") / "model", 2, 0)
    timed = torch_pair()
    device = replace(timed.device, hub=None, path=small)
    return ModelPair(device, replace(timed.cloud, hub=None, path=checkpoint, backend="llama_cpp", gguf=gguf_file))


def served(found: ModelPair, policy: str) -> dict[str, tuple[int, ...]]:
    chosen = setup(policy, pair=found)
    models = load_models(found.device, found.cloud, requirements=chosen.engine_requirements)
    assert found.cloud.path
    asked = queries(Tokenizer(found.cloud.path))
    return {session: tuple(record.tokens) for session, record in emulated.simulate(chosen, models, asked).items()}


def test_a_lossless_policy_writes_the_text_of_its_cloud_on_llama_cpp(pair: ModelPair) -> None:
    alone = served(pair, "cloud_centric")
    assert served(pair, "sled") == alone
    on_torch = replace(pair, cloud=replace(pair.cloud, backend="torch"))
    assert served(on_torch, "cloud_centric") == alone


def test_exact_decoding_computes_every_token_of_the_cloud_alone(pair: ModelPair) -> None:
    own = replace(pair.cloud, timed_architecture=pair.device.timed_architecture)
    models: Any = load_models(own, pair.cloud, requirements=EngineRequirements(batch_invariant=True))
    assert models.cloud.cache.batch_invariant
    assert not models.device.cache.batch_invariant


def test_a_device_drafts_on_llama_cpp(pair: ModelPair) -> None:
    own = replace(pair.cloud, timed_architecture=pair.device.timed_architecture)
    models = load_models(own, pair.cloud)
    assert isinstance(models.device, LlamaCppEngine)
    assert isinstance(models.cloud, LlamaCppEngine)
    assert models.device.tensor_store is models.cloud.tensor_store
    assert models.new_cloud_engine
    assert models.new_cloud_engine() is not models.cloud
    assert served(ModelPair(own, pair.cloud), "sled") == served(pair, "cloud_centric")


def test_the_file_of_another_model_is_refused(pair: ModelPair) -> None:
    other = replace(pair.cloud, path=pair.device.path)
    with pytest.raises(ValueError, match=r"has 3 layers and \d+ tokens, and .*model has 2 and \d+; give the GGUF fi"):
        load_models(pair.device, other)
