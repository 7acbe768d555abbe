"""Tokens from text for servers without token ids, ends of texts, and verdicts from echoed log-probabilities."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.remote.client import RemoteClient
from serving.engines.remote.dialect import DIALECTS, RemoteSampling
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.generator import RemoteGenerator
from serving.engines.remote.prompt_logprobs import REPLACEMENT_CHAR, decode, encode, strip_partial_char, token_texts
from serving.engines.tokenizer import Tokenizer
from serving.messages import Verdict
from tests.serving.engines.remote.conftest import server
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.tiny_tokenizers import byte_fallback, byte_level, words


def ids(text: str) -> tuple[int, ...]:
    return tuple(byte_level()(text, add_special_tokens=False)["input_ids"])


def reciting(tokens: Sequence[int], end: int) -> Callable[[tuple[int, ...]], int]:
    """A brain that goes on with a text by heart, whatever the prompt is that it was begun behind."""

    def next_token(prefix: tuple[int, ...]) -> int:
        known = next((n for n in range(len(tokens), 0, -1) if prefix[-n:] == tuple(tokens[:n])), 0)
        return tokens[known] if known < len(tokens) else end

    return next_token


def asking(fake: FakeServer, tokenizer: Tokenizer, **how: Any) -> RemoteGenerator:
    return RemoteGenerator(
        RemoteClient(server(fake.url), sleep=lambda s: None), DIALECTS[fake.kind], tokenizer, len(tokenizer), **how
    )


TEXT = " it is in the box \U0001f642 aus \u6771\u4eac."


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_text_is_generated_token_by_token_to_its_end(tokenizer: Tokenizer, kind: str, n: int) -> None:
    prompt, end = ids("where is the red key?"), tokenizer.eos_token_ids[0]
    with FakeServer(byte_level(), reciting(ids(TEXT), end), kind, ends=tokenizer.eos_token_ids) as fake:
        writer, written = asking(fake, tokenizer), list(prompt)
        while written[-1] != end:
            written += writer.generate(written, n)
    assert decode(byte_level(), written[len(prompt) : -1]) == TEXT
    assert fake.wrong == []
    if kind != "openai":
        assert tuple(written) == (*prompt, *ids(TEXT), end)


@pytest.mark.parametrize("half", [REPLACEMENT_CHAR, "\ud83d"])
def test_half_a_character_is_no_text(half: str) -> None:
    assert strip_partial_char(f"box {half}{half}") == "box "
    with pytest.raises(RemoteError, match="holds half a character"):
        encode(byte_level(), ids("say:"), f"box {half} aus")


def test_an_incomplete_character_is_requested_with_more_tokens(tokenizer: Tokenizer) -> None:
    smile, prompt = ids("\u6f22 ok"), ids("say:")
    assert REPLACEMENT_CHAR in decode(byte_level(), smile[:1])
    with FakeServer(byte_level(), reciting(smile, 2), "openai", ends=tokenizer.eos_token_ids) as fake:
        assert asking(fake, tokenizer).generate(prompt, 1) == smile[:4]
    assert [body["max_tokens"] for body in fake.asked][:2] == [1, 4]


def test_a_character_that_stays_incomplete_is_an_error(tokenizer: Tokenizer) -> None:
    half = ids("\u6f22")[0]
    with (
        FakeServer(byte_level(), lambda prefix: half, "openai") as fake,
        pytest.raises(RemoteError, match="are no text"),
    ):
        asking(fake, tokenizer).generate(ids("say:"), 1)


def test_only_a_stop_ends_a_text_and_its_end_token_is_the_one_named(tokenizer: Tokenizer) -> None:
    def stopped(**said: Any) -> Any:
        return lambda a: (
            a | {"choices": [a["choices"][0] | {"text": "", "token_ids": [], "finish_reason": "stop"} | said]}
        )

    with FakeServer(byte_level(), lambda prefix: 50) as fake:
        writer = asking(fake, tokenizer)
        fake.faults.extend([stopped(), stopped(matched_stop=2), stopped(stop_reason=77), stopped(token_ids=[60])])
        assert [writer.generate(ids("a"), 3) for _ in range(4)] == [(2,), (2,), (2,), (60, 2)]
        tokenizer_of_none = Tokenizer.__new__(Tokenizer)
        tokenizer_of_none.hf, tokenizer_of_none.eos_token_ids = byte_level(), ()
        fake.faults.append(stopped())
        with pytest.raises(RemoteError, match="no end token"):
            RemoteGenerator(writer.client, writer.dialect, tokenizer_of_none, 400).generate(ids("a"), 3)


def test_prompts_as_text_where_ids_are_refused(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), reciting(ids(" box"), 2), "openai", refuses_ids=True) as fake:
        with pytest.raises(RemoteError, match="must be a text"):
            asking(fake, tokenizer).generate(ids("the red"), 1)
        assert decode(
            byte_level(), asking(fake, tokenizer, prompts_as_text=True).generate(ids("the red"), 2)
        ).startswith(" b")


def test_sampling_parameters_are_sent_in_each_servers_dialect(tokenizer: Tokenizer) -> None:
    for kind, top_k in (("vllm", -1), ("sglang", -1), ("llama_cpp", 0), ("openai", None)):
        with FakeServer(byte_level(), lambda prefix: 50, kind) as fake:
            asking(fake, tokenizer).generate(ids("a"), 1, RemoteSampling(0.8, 0.9, 0, 17))
            asking(fake, tokenizer).generate(ids("a"), 1, RemoteSampling(0.8, 0.9, 5, 17))
        first, second = fake.asked
        assert fake.wrong == []
        assert {**first, "top_k": 0} == {**second, "top_k": 0} if top_k is not None else "top_k" not in first
        assert (first["temperature"], first["top_p"], first["seed"]) == (0.8, 0.9, 17)
        assert (first.get("top_k"), second["top_k"]) == (top_k, 5)


@pytest.mark.parametrize("hf", [byte_level(), byte_fallback(), words()])
@given(data=st.data())
def test_generated_text_is_tokenised_to_the_same_text(hf: Any, data: st.DataObject) -> None:
    """Whatever tokens a model wrote, of whatever kind of tokenizer: the same text, or an error."""
    some = st.lists(st.integers(5, len(hf) - 1), max_size=12)
    prompt, new = data.draw(some), data.draw(some)
    text = decode(hf, prompt + new)[len(decode(hf, prompt)) :]
    try:
        found = encode(hf, prompt, text)
    except RemoteError:
        assert REPLACEMENT_CHAR in text or hf is not byte_level() or REPLACEMENT_CHAR in decode(hf, prompt)
        return
    assert decode(hf, [*prompt[-32:], *found]) == decode(hf, prompt[-32:]) + text


# Verdicts.


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
@pytest.mark.parametrize("stand", range(4))
def test_drafts_are_accepted_up_to_the_first_difference(tokenizer: Tokenizer, kind: str, stand: int) -> None:
    prompt, own = ids("where is it?"), ids(" in the red box")
    drafts = [*own[:stand], 60, 61, 62][:3]
    with FakeServer(byte_level(), reciting(own, 2), kind, ends=tokenizer.eos_token_ids) as fake:
        assert asking(fake, tokenizer).verify(prompt, drafts) == Verdict(stand, own[stand])
    assert fake.wrong == []
    assert len(fake.asked) == (1 if kind == "vllm" else 2)  # a correction that has only a text is asked for


@pytest.mark.parametrize("stand", range(4))
@pytest.mark.parametrize("text", [" in the red box", " \u6f22 ok"])
def test_drafts_sent_as_text_get_the_same_verdict(tokenizer: Tokenizer, stand: int, text: str) -> None:
    prompt, own = ids("where is it?"), ids(text)
    drafts = (*own[:stand], *ids("zyx"))[:3]
    with FakeServer(byte_level(), reciting(own, 2), "openai", ends=tokenizer.eos_token_ids, refuses_ids=True) as fake:
        verdict = asking(fake, tokenizer, prompts_as_text=True).verify(prompt, drafts)
    assert (*drafts[: verdict.accepted], verdict.next_token) == own[: verdict.accepted + 1]


@pytest.mark.parametrize("listed", [True, False])
def test_a_text_that_ends_after_its_drafts_gets_a_verdict(tokenizer: Tokenizer, listed: bool) -> None:
    """Some servers list the end token, others do not."""
    prompt, own = ids("where is it?"), ids(" in")
    with FakeServer(byte_level(), reciting(own, 2), "openai", ends=tokenizer.eos_token_ids, refuses_ids=True) as fake:
        if not listed:
            fake.faults.append(_logprobs(lambda p: {k: v[:-1] for k, v in p.items() if v}))
        assert asking(fake, tokenizer, prompts_as_text=True).verify(prompt, own) == Verdict(len(own), 2)


def test_a_draft_that_the_server_cuts_otherwise_is_not_accepted(tokenizer: Tokenizer) -> None:
    """Two tokens of ours are one of the server's: its opinion on the last is one on what it wrote itself."""
    hf = byte_level()
    whole = next(t for t in range(3, len(hf)) if len(text := decode(hf, [t])) == 2 and ids(text) == (t,))
    drafts = tuple(ids(letter)[0] for letter in decode(hf, [whole]))
    prompt = ids("where is it?")
    with FakeServer(
        hf, reciting((whole, *ids(" ok")), 2), "openai", ends=tokenizer.eos_token_ids, refuses_ids=True
    ) as fake:
        with pytest.raises(RemoteError, match=r"6 tokens, sent as text, into 5 .*no verdict can be made") as told:
            asking(fake, tokenizer, prompts_as_text=True).verify(prompt, drafts)
        assert not told.value.transient
        fake.faults.append(lambda a: a | {"usage": None})
        with pytest.raises(RemoteError, match="into None"):
            asking(fake, tokenizer, prompts_as_text=True).verify(prompt, (whole,))


def test_a_text_cut_into_other_tokens_is_refused_even_at_equal_length(tokenizer: Tokenizer) -> None:
    prompt, own = ids("where is it?"), ids(" in the")

    def turned(logprobs: dict[str, Any]) -> dict[str, Any]:
        *before, last, new = logprobs["tokens"]
        return logprobs | {"tokens": [*before[:-1], before[-1] + last[:1], last[1:], new]}

    with FakeServer(byte_level(), reciting(own, 2), "openai", ends=tokenizer.eos_token_ids, refuses_ids=True) as fake:
        fake.faults.append(_logprobs(turned))
        with pytest.raises(RemoteError, match="cuts the text into other tokens"):
            asking(fake, tokenizer, prompts_as_text=True).verify(prompt, own)


def test_half_a_character_is_never_sent_as_text(tokenizer: Tokenizer) -> None:
    """Verification stops before an incomplete character, and no request may end in one."""
    prompt, own = ids("where is it?"), ids(" is\u6f22 ok")
    assert [REPLACEMENT_CHAR in decode(byte_level(), [t]) for t in own[:2]] == [False, True]
    with FakeServer(byte_level(), reciting(own, 2), "openai", ends=tokenizer.eos_token_ids, refuses_ids=True) as fake:
        writer = asking(fake, tokenizer, prompts_as_text=True)
        assert writer.verify(prompt, own[:4]) == Verdict(1, own[1])
        assert not any(REPLACEMENT_CHAR in body["prompt"] for body in fake.asked)
        for ask in (
            lambda: writer.generate((*prompt, *own[:2]), 1),
            lambda: writer.verify((*prompt, *own[:2]), own[2:4]),
        ):
            with pytest.raises(RemoteError, match="ends in half a character, and the server takes only text"):
                ask()


@pytest.mark.parametrize("hf", [byte_level(), byte_fallback(), words()])
@given(data=st.data())
def test_the_texts_of_tokens_join_to_their_decoding(hf: Any, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(5, len(hf) - 1), min_size=2, max_size=2))
    own = token_texts(hf, tokens[:1], tokens[1])
    assert own[0] == decode(hf, tokens[1:])
    assert REPLACEMENT_CHAR in decode(hf, tokens[:1]) + own[0] or decode(hf, tokens[:1]) + own[1] == decode(hf, tokens)


def test_a_verdict_may_end_the_text(tokenizer: Tokenizer) -> None:
    prompt, own = ids("where is it?"), ids(" in")
    with FakeServer(byte_level(), reciting(own, 2), ends=tokenizer.eos_token_ids) as fake:
        assert asking(fake, tokenizer).verify(prompt, own) == Verdict(1, 2)
        assert asking(fake, tokenizer).verify(prompt, (*own, 60)) == Verdict(1, 2)


def _logprobs(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        choice = answer["choices"][0]
        return answer | {"choices": [choice | {"logprobs": change(choice["logprobs"])}]}

    return changed


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: None, "returned nothing as logprobs"),
        (lambda p: p | {"tokens": p["tokens"][-1:]}, "does not echo prompts"),
        (lambda p: {k: v[-1:] for k, v in p.items()}, "does not echo prompts"),
        (lambda p: p | {"token_logprobs": p["token_logprobs"][:-1]}, "does not echo prompts"),
        (lambda p: p | {"top_logprobs": None}, "logprobs.top_logprobs"),
        (lambda p: p | {"top_logprobs": [None] * len(p["tokens"])}, "names no likeliest token"),
        (lambda p: p | {"top_logprobs": [{}] * len(p["tokens"])}, "names no likeliest token"),
        (lambda p: p | {"token_logprobs": [None] * len(p["tokens"])}, "as a log-probability"),
        (lambda p: p | {"token_logprobs": [float("nan")] * len(p["tokens"])}, "nan as a log-probability"),
        (lambda p: p | {"token_logprobs": [3.0] * len(p["tokens"])}, "3.0 as a log-probability"),
        (lambda p: p | {"token_logprobs": [-(10**400)] * len(p["tokens"])}, "-1000.* as a log-probability"),
        (lambda p: p | {"tokens": ["token_id:7"] * len(p["tokens"])}, "echoes token 7"),
        (lambda p: p | {"tokens": ["x"] * len(p["tokens"])}, "some tokens by id"),
    ],
)
def test_malformed_log_probabilities_are_an_error(tokenizer: Tokenizer, change: Any, match: str) -> None:
    with FakeServer(byte_level(), reciting(ids(" in the box"), 2)) as fake:
        fake.faults.append(_logprobs(change))
        with pytest.raises(RemoteError, match=match):
            asking(fake, tokenizer).verify(ids("where?"), ids(" in the"))
