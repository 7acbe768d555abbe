"""What a server must offer before any work is done, and the errors of one that does not."""

from pathlib import Path
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.deployment.model_loading import load_models, load_side, load_tokenizer, num_layers
from serving.deployment.setup import context_tokens
from serving.engines.models import Checkpoint, ModelConfig, ModelPair
from serving.engines.remote.engine import RemoteEngine
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.opening import connect_remote
from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.tensor_store import TensorStore
from serving.messages import ForwardWork, SequenceSlice, Span
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.offload import NeverOffload
from serving.policy.slots.placement import CloudPlacement, UShapedPlacement
from serving.policy.slots.verify import Replace
from serving.progress import silent
from serving.runtimes.emulated import Emulated
from serving.runtimes.local import Local
from tests.serving.engines.remote.conftest import counting, server
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.conf_files import architecture
from tests.support.fake_setup import setup
from tests.support.tiny_tokenizers import byte_level, words

LARGE = architecture("llama2_13b")


def opened(fake: FakeServer, tokenizer: Tokenizer, verifies: bool = False, **how: Any) -> RemoteEngine:
    return connect_remote(server(fake.url, **how), tokenizer, len(tokenizer), verifies)


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "llama_cpp"])
def test_the_kind_of_a_server_is_recognised(tokenizer: Tokenizer, kind: str) -> None:
    with FakeServer(byte_level(), counting(50), kind, ends=tokenizer.eos_token_ids) as fake:
        opened(fake, tokenizer, verifies=kind != "llama_cpp")
        assert fake.wrong == []
        assert fake.asked


def test_a_server_that_refuses_token_ids_gets_text(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), counting(50), "openai", refuses_ids=True) as fake:
        assert opened(fake, tokenizer).generator.prompts_as_text


def test_a_model_that_the_server_lacks_is_refused(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), counting(50)) as fake:
        with pytest.raises(
            ValueError, match=r"no model 'larger' at http.*it lists: large\. Set model.cloud.server.model"
        ):
            opened(fake, tokenizer, model="larger")
        assert fake.asked == []


def test_an_unreachable_server_is_refused_with_a_hint(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), counting(50)) as fake:
        pass
    with pytest.raises(ValueError, match=r"model.cloud.server: the server of large .* is it running"):
        opened(fake, tokenizer)


def test_a_context_shorter_than_configured_is_refused(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), counting(50)) as fake:
        opened(fake, tokenizer, context_tokens=512)
        with pytest.raises(ValueError, match="context_tokens is 513, and the server takes 512"):
            opened(fake, tokenizer, context_tokens=513)


def test_a_context_shorter_than_the_workload_needs_is_refused(pair: tuple[Path, Path]) -> None:
    with FakeServer(byte_level(), counting(50), context=100) as fake:
        cloud = ModelConfig(timed_architecture=LARGE, server=server(fake.url))
        device = ModelConfig(path=pair[0], timed_architecture=architecture("tinyllama_1_1b"))
        load_models(device, cloud, context_tokens=100)
        with pytest.raises(ValueError, match="may become 101 tokens long, and the server takes 100; give the server"):
            load_models(device, cloud, context_tokens=101)
        fake.asked.clear()
        long = setup("sled", pair=ModelPair(device, cloud), limits={"max_prompt_tokens": 90})
        for refused in (
            lambda: Emulated().serve(long, "cpu", silent),
            lambda: Local().serve(long, "cpu", silent),
            lambda: load_side(long, "cloud", TensorStore()),
        ):
            with pytest.raises(ValueError, match="may become 114 tokens long, and the server takes 100"):
                refused()
        with pytest.raises(ValueError, match=r"120 tokens long, and the server takes 100; .*service.context_tokens"):
            load_side(setup("sled", pair=ModelPair(device, cloud)), "cloud", TensorStore(), context_tokens=120)
        few = ModelConfig(timed_architecture=LARGE, server=server(fake.url, context_tokens=60))
        with pytest.raises(ValueError, match=r"114 tokens long, and model.cloud.server.context_tokens allows 60"):
            load_side(
                setup("sled", pair=ModelPair(device, few), limits={"max_prompt_tokens": 90}), "cloud", TensorStore()
            )
        assert fake.asked == []


def test_a_stopped_cloud_asks_its_server_no_more(pair: tuple[Path, Path]) -> None:
    with FakeServer(byte_level(), counting(50)) as fake:
        cloud = ModelConfig(timed_architecture=LARGE, server=server(fake.url))
        device = ModelConfig(path=pair[0], timed_architecture=architecture("tinyllama_1_1b"))
        models = load_side(setup("cloud_centric", pair=ModelPair(device, cloud)), "cloud", TensorStore())
        fake.asked.clear()
        models.stop()
        asked = SequenceSlice("s", 0, 3, (40, 41, 42), 0, "greedy")
        with pytest.raises(RemoteError, match="asked no more"):
            models.cloud.execute(ForwardWork(Span(0, 40, True, True), (asked,), ("none",), ()))
        assert fake.asked == []
        models.close()


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "llama_cpp"])
def test_another_tokenizer_is_refused_with_what_differs(tokenizer: Tokenizer, kind: str) -> None:
    with (
        FakeServer(words(), lambda prefix: 2, kind) as fake,
        pytest.raises(ValueError, match=r"its tokenizer is not the pair's.* here and .* there.*the device's family"),
    ):
        opened(fake, tokenizer)


def test_a_server_that_adds_tokens_is_refused(tokenizer: Tokenizer) -> None:
    with (
        FakeServer(byte_level(), counting(50), "openai", added=1) as fake,
        pytest.raises(ValueError, match="or it adds tokens of its own"),
    ):
        opened(fake, tokenizer)


def test_the_same_words_under_other_numbers_are_refused(tokenizer: Tokenizer) -> None:
    class Swapped(FakeServer):
        def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
            return super().detokenize({"tokens": [{41: 42, 42: 41}.get(t, t) for t in body["tokens"]]})

    with (
        Swapped(byte_level(), counting(50)) as fake,
        pytest.raises(ValueError, match="its vocabulary is not the pair's"),
    ):
        opened(fake, tokenizer)


def test_a_key_that_the_vocabulary_spells_changes_no_verdict(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.remote.errors._SECRETS", set())
    monkeypatch.setenv("TANDEM_LLM_KEY", "e")

    class Odd(FakeServer):
        def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
            return {name: f"?{text}" for name, text in super().detokenize(body).items()}

    with FakeServer(byte_level(), counting(50), key="e") as fake:
        opened(fake, tokenizer)
    with Odd(byte_level(), counting(50), key="e") as fake, pytest.raises(ValueError, match="from character 0 on"):
        opened(fake, tokenizer)


@pytest.mark.parametrize(
    ("kind", "how", "why"),
    [
        ("llama_cpp", {}, "llama.cpp ignores echo"),
        ("openai", {"ignores_echo": True}, "does not echo prompts"),
        ("vllm", {"ignores_echo": True}, "does not echo prompts"),
        ("vllm", {"late_echo": True}, "of its own"),
    ],
)
def test_a_server_without_prompt_logprobs_is_refused_for_policies_that_verify(
    tokenizer: Tokenizer, kind: str, how: dict[str, Any], why: str
) -> None:
    with FakeServer(byte_level(), counting(50), kind, **how) as fake:
        opened(fake, tokenizer)
        with pytest.raises(ValueError, match=rf"{why}.*synera, sled, wisp.*hybrid, edgefm, cloud_centric"):
            opened(fake, tokenizer, verifies=True)


# Setups.


def far(path: Path | None = None, **how: Any) -> ModelConfig:
    where = server("http://127.0.0.1:9/v1", **how)
    return ModelConfig(path=path, timed_architecture=LARGE, server=where)


def pair_with(cloud: ModelConfig) -> ModelPair:
    return ModelPair(ModelConfig(hub="a/small", timed_architecture=architecture("tinyllama_1_1b")), cloud)


def test_policies_that_no_server_supports_are_refused_before_any_work() -> None:
    pair = pair_with(far())
    setup("sled", pair=pair)
    setup("cloud_centric", pair=pair, decoding=Decoding(temperature=0.8))
    setup("sled", pair=pair, decoding=Decoding(temperature=0.8), override={"verify": Replace()})
    with pytest.raises(ValueError, match="verifies drafts, which takes the distribution"):
        setup("sled", pair=pair, decoding=Decoding(temperature=0.8))
    with pytest.raises(ValueError, match="placement=UShapedPlacement splits it"):
        setup("u_shape", pair=pair)
    with pytest.raises(ValueError, match="placement=UShapedPlacement splits it"):
        setup("hat", pair=pair, override={"placement": UShapedPlacement()})
    with pytest.raises(ValueError, match=r"model.device.server is set"):
        ModelPair(far(), far())
    with pytest.raises(ValueError, match="neither path nor hub"):
        ModelConfig(timed_architecture=LARGE)


def test_only_policies_that_send_drafts_need_verdicts() -> None:
    asked = {"sled": True, "synera": True, "cloud_centric": False, "edge_centric": False}
    assert {name: setup(name).policy.engine_requirements.verifies_drafts for name in asked} == asked
    assert not setup("sled", override={"verify": Replace()}).policy.engine_requirements.verifies_drafts
    assert not setup(
        "sled", override={"offload": NeverOffload(), "placement": CloudPlacement()}
    ).policy.engine_requirements.verifies_drafts


def test_services_refuse_sampling_where_a_server_verifies() -> None:
    assert setup("sled", pair=pair_with(far())).requires_greedy
    assert not setup("sled").requires_greedy
    assert not setup("cloud_centric", pair=pair_with(far())).requires_greedy


def test_without_local_weights_the_tokenizer_is_the_devices_and_the_layers_are_the_timed_ones(
    pair: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    device, cloud = Checkpoint(path=pair[0]), far()
    assert num_layers(cloud) == LARGE.layers
    assert num_layers(far(pair[1])) == 3
    found, vocabulary = load_tokenizer(device, cloud)
    assert (found.hf.get_vocab(), vocabulary) == (tokenizer.hf.get_vocab(), len(tokenizer))
    with FakeServer(byte_level(), counting(50)) as fake:
        models = load_models(device, ModelConfig(timed_architecture=LARGE, server=server(fake.url)))
    assert isinstance(models.cloud, RemoteEngine)
    assert (models.device_layers, models.cloud_layers) == (2, LARGE.layers)
    assert models.notes() == ()


def test_context_tokens_are_the_smallest_of_model_server_and_cache(pair: tuple[Path, Path]) -> None:
    small = ModelConfig(path=pair[0], timed_architecture=architecture("tinyllama_1_1b"))
    assert context_tokens(setup("sled", pair=ModelPair(small, far()))) == 256
    assert context_tokens(setup("sled", pair=ModelPair(small, far(context_tokens=100)))) == 100
    cached = {"kv_cache": PrefixCaching(capacity_tokens=96)}
    assert context_tokens(setup("cloud_centric", pair=ModelPair(small, far()), override=cached)) == 96
