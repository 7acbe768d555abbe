"""The client against a faulty server: every fault is an error of its class, and none ends a text."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from serving.engines.remote.client import RemoteClient
from serving.engines.remote.dialect import DIALECTS, parse_token_id
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.generator import RemoteGenerator
from serving.engines.remote.retry import MAX_CONSECUTIVE_COOLDOWNS
from serving.engines.tokenizer import Tokenizer
from tests.serving.engines.remote.conftest import Clock, counting, server
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.tiny_tokenizers import byte_level
from tests.support.tls_certificate import certified

KEY = "sk-the-key-of-this-test"
PROMPT = (40, 41, 42)


@pytest.fixture
def fake(tokenizer: Tokenizer) -> Iterator[FakeServer]:
    with FakeServer(byte_level(), counting(50), ends=tokenizer.eos_token_ids) as made:
        yield made


def writer(fake: FakeServer, tokenizer: Tokenizer, slept: list[float] | None = None, **how: Any) -> RemoteGenerator:
    client = RemoteClient(server(fake.url, **how), sleep=(slept if slept is not None else []).append)
    return RemoteGenerator(client, DIALECTS[fake.kind], tokenizer, len(tokenizer))


def own(prompt: tuple[int, ...]) -> int:
    return counting(50)(prompt)


@pytest.mark.parametrize("fault", [500, 502, 503, 504, 408, "busy", "reset", "cut"])
def test_transient_faults_are_retried(fake: FakeServer, tokenizer: Tokenizer, fault: Any) -> None:
    fake.faults = deque([fault, fault])
    slept: list[float] = []
    assert writer(fake, tokenizer, slept).generate(PROMPT, 1) == (own(PROMPT),)
    assert (len(fake.asked), len(slept)) == (3, 2)
    assert slept == [7.0, 7.0] if fault == "busy" else max(slept) <= 1e-3


@pytest.mark.parametrize("fault", [500, "busy", "reset", "hang", "drip", "cut"])
def test_a_transient_fault_that_lasts_is_an_error_after_three_attempts(
    fake: FakeServer, tokenizer: Tokenizer, fault: Any
) -> None:
    fake.faults = deque([fault] * 9)
    short = {"timeout_s": 0.1} if fault in ("hang", "drip") else {}
    with pytest.raises(RemoteError, match="in 3 attempts") as told:
        writer(fake, tokenizer, retries=2, **short).generate(PROMPT, 1)
    assert told.value.transient
    assert len(fake.asked) == 3


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("fault", ["drip", "drip_header", "drip_chunk_size"])
def test_a_server_that_trickles_is_left_after_the_timeout(
    tokenizer: Tokenizer, tmp_path: Path, fault: str, tls: bool
) -> None:
    files = certified(tmp_path) if tls else None
    with FakeServer(byte_level(), counting(50), files=files) as fake:
        fake.faults = deque([fault])
        how = {"ca_certificate": files[0]} if files else {}
        with pytest.raises(RemoteError, match="did not answer in time") as told:
            writer(fake, tokenizer, timeout_s=0.3, retries=0, **how).generate(PROMPT, 1)
        assert told.value.transient


def _choice(**changes: Any) -> Any:
    return lambda answer: answer | {"choices": [answer["choices"][0] | changes]}


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (400, "refused the question: 400"),
        (401, "is the key in TANDEM_LLM_KEY right"),
        (404, "refused the question: 404"),
        (422, "refused the question: 422"),
        ("redirect", "redirects"),
        ("truncated", "broke off, or answered no JSON"),
        ("half_utf8", "broke off, or answered no JSON"),
        ("empty", "broke off, or answered no JSON"),
        ("deep", "broke off, or answered no JSON"),
        ("array", "answered a list"),
        ("huge", "more than 100000 bytes"),
        ("zipped", "an encoding that was not requested"),
        (lambda a: {"error": {"message": "out of memory"}}, "200 with an error .out of memory"),
        (lambda a: a | {"choices": []}, "0 choices"),
        (lambda a: a | {"choices": a["choices"] * 2}, "2 choices"),
        (lambda a: a | {"choices": None}, "has nothing where one choice"),
        (lambda a: a | {"choices": ["text"]}, "where one choice is due"),
        (lambda a: a | {"usage": {"prompt_tokens": 2}}, "read 2 tokens of a prompt of 3"),
        (lambda a: a | {"usage": "much"}, "read None tokens"),
        (_choice(text=None), "no text but nothing"),
        (_choice(text=7), "no text but a int"),
        (_choice(finish_reason=None), "finish_reason=None"),
        (_choice(finish_reason="abort"), "finish_reason='abort'"),
        (_choice(finish_reason="content_filter"), "finish_reason='content_filter'"),
        (_choice(token_ids="abc"), "where a list of token ids is due"),
        (_choice(token_ids=[True]), "where a list of token ids is due"),
        (_choice(token_ids=[1.5]), "where a list of token ids is due"),
        (_choice(token_ids=[]), "wrote no token, and does not say"),
        (_choice(token_ids=[40, 41]), "wrote 2 tokens where 1 were asked"),
        (_choice(token_ids=[10_000]), "wrote token 10000"),
        (_choice(token_ids=[-1]), "wrote token -1"),
    ],
)
def test_a_permanent_fault_is_an_error_without_retry(
    fake: FakeServer, tokenizer: Tokenizer, fault: Any, match: str
) -> None:
    fake.faults = deque([fault])
    slept: list[float] = []
    with pytest.raises(RemoteError, match=match) as told:
        writer(fake, tokenizer, slept, max_response_nbytes=100_000).generate(PROMPT, 1)
    assert not told.value.transient
    assert (len(fake.asked), slept) == (1, [])


def test_an_answer_without_finish_reason_is_an_error(fake: FakeServer, tokenizer: Tokenizer) -> None:
    def shortened(answer: dict[str, Any]) -> dict[str, Any]:
        del answer["choices"][0]["finish_reason"]
        return answer

    fake.faults = deque([shortened])
    with pytest.raises(RemoteError, match="finish_reason=None"):
        writer(fake, tokenizer).generate(PROMPT, 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tokens": None}, "where a list of token ids is due"),
        ({"stop_type": "word"}, "stop_type='word'"),
        ({"stop_type": "none"}, "stop_type='none'"),
        ({"truncated": True}, "truncated the prompt"),
        ({"tokens_evaluated": 9}, "read 9 tokens"),
        ({"content": None}, "no content but nothing"),
    ],
)
def test_answers_of_llama_cpp_are_checked_as_strictly(
    tokenizer: Tokenizer, changes: dict[str, Any], match: str
) -> None:
    with FakeServer(byte_level(), counting(50), "llama_cpp") as fake:
        fake.faults = deque([lambda answer: answer | changes])
        with pytest.raises(RemoteError, match=match):
            writer(fake, tokenizer).generate(PROMPT, 1)
        assert writer(fake, tokenizer).generate(PROMPT, 2) == (own(PROMPT), own((*PROMPT, own(PROMPT))))


def test_an_unreachable_server_is_a_transient_error(tokenizer: Tokenizer) -> None:
    with FakeServer(byte_level(), counting(50)) as fake:
        pass
    with pytest.raises(RemoteError, match=r"was not reached .*is it running") as told:
        writer(fake, tokenizer).generate(PROMPT, 1)
    assert told.value.transient


def test_after_its_last_attempt_a_server_is_not_asked_for_a_moment(fake: FakeServer, tokenizer: Tokenizer) -> None:
    now = [0.0]
    client = RemoteClient(server(fake.url, retries=0, cooldown_s=5.0), sleep=lambda s: None, clock=lambda: now[0])
    asking = RemoteGenerator(client, DIALECTS["vllm"], tokenizer, len(tokenizer))
    fake.faults = deque([500])
    with pytest.raises(RemoteError, match="said 500"):
        asking.generate(PROMPT, 1)
    with pytest.raises(RemoteError, match="left alone for a moment, after: said 500"):
        asking.generate(PROMPT, 1)
    assert len(fake.asked) == 1
    assert client.num_failures == 2
    now[0] = 5.0
    assert asking.generate(PROMPT, 1) == (own(PROMPT),)


def test_a_stopped_client_waits_no_more_and_asks_no_more(
    fake: FakeServer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Event()

    def minute(*_: Any) -> float:
        waiting.set()
        return 60.0

    monkeypatch.setattr("serving.engines.remote.client.retry_delay_s", minute)
    client = RemoteClient(server(fake.url))
    asking = RemoteGenerator(client, DIALECTS["vllm"], tokenizer, len(tokenizer))
    fake.faults = deque([503] * 9)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(asking.generate, PROMPT, 1)
        assert waiting.wait(10)
        client.stop()
        with pytest.raises(RemoteError, match="asked no more, since this process stops") as told:
            answer.result(10)
    assert told.value.transient
    assert len(fake.asked) == 1


def resting(fake: FakeServer, tokenizer: Tokenizer, clock: Clock, **how: Any) -> RemoteGenerator:
    client = RemoteClient(server(fake.url, retries=0, cooldown_s=5.0), sleep=clock.sleep, clock=clock, **how)
    return RemoteGenerator(client, DIALECTS["vllm"], tokenizer, len(tokenizer))


def test_on_virtual_time_the_pause_after_failed_attempts_is_waited_out(fake: FakeServer, tokenizer: Tokenizer) -> None:
    clock = Clock()
    asking = resting(fake, tokenizer, clock, wait_for_cooldown=True)
    fake.faults = deque([500, 500])
    for _ in range(2):
        with pytest.raises(RemoteError, match="said 500"):
            asking.generate(PROMPT, 1)
    assert asking.generate(PROMPT, 1) == (own(PROMPT),)
    assert clock.slept == [5.0, 5.0]


def test_the_wait_for_a_lost_server_is_bounded(fake: FakeServer, tokenizer: Tokenizer) -> None:
    clock = Clock()
    asking = resting(fake, tokenizer, clock, wait_for_cooldown=True)
    fake.faults = deque([500] * 99)
    for _ in range(40):
        with pytest.raises(RemoteError):
            asking.generate(PROMPT, 1)
    assert clock.slept == [5.0] * MAX_CONSECUTIVE_COOLDOWNS
    assert (len(fake.asked), asking.client.num_failures) == (MAX_CONSECUTIVE_COOLDOWNS + 1, 40)
    clock.now_s += 5.0
    fake.faults.clear()
    asking.generate(PROMPT, 1)  # it is back: the next rest is waited out again
    fake.faults = deque([500])
    with pytest.raises(RemoteError):
        asking.generate(PROMPT, 1)
    assert asking.generate(PROMPT, 1) == (own(PROMPT),)
    assert clock.slept == [5.0] * (MAX_CONSECUTIVE_COOLDOWNS + 1)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("waits", [False, True])
def test_a_refused_key_is_sent_once_a_request_and_named_in_the_error(
    fake: FakeServer, tokenizer: Tokenizer, status: int, waits: bool
) -> None:
    """Whatever is asked: no question is answered with it, so that none is held back, either."""
    clock = Clock()
    asking = resting(fake, tokenizer, clock, wait_for_cooldown=waits)
    fake.faults = deque([status])
    for prompt in ((40,), (41,), (42,)):
        with pytest.raises(RemoteError, match="is the key in TANDEM_LLM_KEY right") as told:
            asking.generate(prompt, 1)
        assert told.value.transient == (prompt != (40,))
    assert (len(fake.asked), clock.slept, asking.client.num_failures) == (1, [], 3)
    clock.now_s = 5.0
    assert asking.generate(PROMPT, 1) == (own(PROMPT),)


def test_the_key_is_sent_and_never_printed(
    fake: FakeServer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.key = KEY
    monkeypatch.setenv("TANDEM_LLM_KEY", KEY)
    with caplog.at_level(logging.DEBUG):
        assert writer(fake, tokenizer).generate(PROMPT, 1) == (own(PROMPT),)
        fake.key = "another"
        with pytest.raises(RemoteError, match=r"wrong key Bearer \*\*\*") as told:
            writer(fake, tokenizer).generate(PROMPT, 1)
    assert KEY not in f"{told.value} {told.getrepr()}"
    assert KEY not in caplog.text


RIGHT_TO_LEFT = "\u202e"


@pytest.mark.parametrize("said", [KEY, "x" * 70 + KEY, f"{RIGHT_TO_LEFT}{KEY}\n" * 5000, "\U000e0001" * 999])
@pytest.mark.parametrize(
    "fault",
    [
        lambda said: _choice(finish_reason=said),
        lambda said: _choice(text=said, finish_reason=said),
        lambda said: lambda a: a | {"usage": {"prompt_tokens": said}},
        lambda said: lambda a: a | {"error": {"message": said}},
        lambda said: _choice(finish_reason=[said]),
    ],
)
def test_a_servers_message_is_quoted_briefly_and_without_the_key(
    fake: FakeServer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, said: str, fault: Any
) -> None:
    """Also where the quotation would be cut inside the key."""
    monkeypatch.setenv("TANDEM_LLM_KEY", KEY)
    fake.faults = deque([fault(said)])
    with pytest.raises(RemoteError) as told:
        writer(fake, tokenizer).generate(PROMPT, 1)
    message = str(told.value)
    assert len(message) < 420
    assert message.isprintable()
    assert KEY[:8] not in message


@pytest.mark.parametrize("said", [KEY, "x" * 70 + KEY, f"{KEY}\n" * 5000])
@pytest.mark.parametrize("name", ["tokens", "token_logprobs"])
def test_the_key_is_not_quoted_from_prompt_logprobs(
    fake: FakeServer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, said: str, name: str
) -> None:
    monkeypatch.setenv("TANDEM_LLM_KEY", KEY)

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        logprobs = answer["choices"][0]["logprobs"]
        return _choice(logprobs=logprobs | {name: [said] * len(logprobs[name])})(answer)

    asking = writer(fake, tokenizer)
    asking.prompts_as_text = True
    fake.faults = deque([changed])
    with pytest.raises(RemoteError) as told:
        asking.verify(PROMPT, (60,))
    assert len(str(told.value)) < 300
    assert KEY[:8] not in str(told.value)


def test_a_token_id_that_is_no_integer_is_an_error() -> None:
    assert parse_token_id("token_id:17") == 17
    assert parse_token_id("token_id:" + "9" * 5000) is None


def test_proxies_and_netrc_of_the_environment_are_ignored(
    fake: FakeServer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert writer(fake, tokenizer).generate(PROMPT, 1) == (own(PROMPT),)


def test_an_untrusted_certificate_is_a_permanent_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = certified(tmp_path)
    with FakeServer(byte_level(), counting(50), files=files) as fake:
        with pytest.raises(RemoteError, match="a certificate that is not trusted") as told:
            writer(fake, tokenizer).generate(PROMPT, 1)
        assert not told.value.transient
        assert fake.asked == []
        assert writer(fake, tokenizer, ca_certificate=files[0]).generate(PROMPT, 1) == (own(PROMPT),)
