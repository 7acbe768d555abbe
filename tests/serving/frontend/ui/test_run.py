"""A run as events: texts, ends, and a cloud that goes."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from frontend.openai.fake_gateway import FakeTokenizer
from frontend.ui.tiny_page import meter, named, offer, routed

from serving.frontend.openai.detokenizer import decode
from serving.frontend.openai.errors import ApiError
from serving.frontend.ui.run import UiRun, encode_sse
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.token_trace import RunObserver
from serving.messages import EmitTokens, GenerationRequest, PeerLost, PeerRestored, RequestArrived, RoutingOptions
from serving.policy.slots.link_loss import LinkLoss


class Told:
    """Calls whose news a test writes."""

    def __init__(self, watch: RunObserver, *news: Any) -> None:
        self._watch, self._news = watch, news

    async def stream(self, device: str, call: GenerationRequest) -> AsyncGenerator[Any, None]:
        self._watch.event_handled(device, RequestArrived(call), 0.0, ())
        for told in self._news:
            self._watch.event_handled(device, PeerLost("nobody"), 1.0, (told,) if isinstance(told, EmitTokens) else ())
            yield told, 1.0


def events(*news: Any, mode: Any = None, action: Any = "local", reach: Any = lambda: True) -> list[Any]:
    watch, tokenizer = RunObserver(["device-0"]), FakeTokenizer()
    asked = RunRequest(offer(replace(routed(), link_loss=LinkLoss(action))), "x", 8, None, mode)
    run = UiRun(asked, (1,), "device-0", "s", Told(watch, *news), watch, meter(), tokenizer, reach)  # type: ignore[arg-type]

    async def play() -> list[Any]:
        return [event async for some in run.events() for event in some]

    return asyncio.run(play())


def test_half_characters_wait_for_their_other_half_and_the_texts_are_the_text() -> None:
    hf = FakeTokenizer().hf
    whole, half = (hf(text, add_special_tokens=False)["input_ids"] for text in ("naïve 🙂 a", "🙂"))
    tokens = (*whole, half[0])
    found = events(*(EmitTokens("s", (t,), ("device",)) for t in tokens), EmitTokens("s", (), (), "complete"))
    texts = [token["text"] for token in named(found, "token")]
    assert "" in texts
    assert "".join(texts) + named(found, "done")[0]["remaining_text"] == decode(hf, tokens)
    assert all(token["token"] for token in named(found, "token"))


def test_an_end_token_is_a_token_without_text() -> None:
    end = FakeTokenizer().eos_token_ids[0]
    found = events(EmitTokens("s", (end,), ("cloud",)), EmitTokens("s", (), (), "complete"))
    (token,) = named(found, "token")
    assert (token["text"], token["end"], token["by_cloud"]) == ("", True, True)
    assert named(found, "counters")[-1]["cloud_tokens"] == 1
    assert named(found, "done") == [{"finish_reason": "stop", "remaining_text": ""}]


def test_what_was_held_at_an_end_token_is_its_text() -> None:
    """And not the end's: the page would show it as a part of the word `end`."""
    hf, end = FakeTokenizer().hf, FakeTokenizer().eos_token_ids[0]
    half = hf("🙂", add_special_tokens=False)["input_ids"][0]
    found = events(*(EmitTokens("s", (t,), ("device",)) for t in (half, end)), EmitTokens("s", (), (), "complete"))
    first, last = named(found, "token")
    assert (first["text"], last["text"], last["end"]) == ("", decode(hf, (half,)), True)
    assert last["text"]
    assert named(found, "done") == [{"finish_reason": "stop", "remaining_text": ""}]


END = EmitTokens("s", (), (), "complete")


def test_a_cloud_that_goes_is_told_with_what_the_policy_does_then() -> None:
    said = named(
        events(PeerLost("cloud-0"), PeerLost("cloud-1"), PeerRestored("cloud-0"), PeerRestored("cloud-1"), END), "cloud"
    )
    assert [each["reachable"] for each in said] == [False, True]
    assert "goes on alone" in said[0]["message"]


@pytest.mark.parametrize(
    ("action", "says"), [("local", "goes on alone"), ("wait", "waits for it"), ("fail", "ends a run without it")]
)
def test_a_run_that_begins_while_the_cloud_is_gone_says_so_first(action: Any, says: str) -> None:
    begun, told, *rest = events(PeerRestored("cloud-0"), END, action=action, reach=[False, False].pop)
    assert (begun[0], begun[1]["cloud"], told[0], told[1]["reachable"]) == ("started", False, "cloud", False)
    assert says in told[1]["message"]
    assert [each["reachable"] for each in named(rest, "cloud")] == [True]


def test_a_cloud_that_goes_before_anybody_follows_is_told_too() -> None:
    said = named(events(END, reach=[True, True, False, True].pop), "cloud")
    assert [each["reachable"] for each in said] == [False, True]


def test_who_asks_nobody_is_not_told_of_a_cloud() -> None:
    found = events(PeerLost("cloud-0"), END, mode=RoutingOptions(small_only=True), reach=lambda: False)
    assert named(found, "cloud") == []


@pytest.mark.parametrize(
    ("action", "reach", "says"),
    [("fail", False, "cloud cannot be reached"), ("fail", True, "broke off"), ("local", False, "broke off")],
)
def test_an_answer_that_breaks_off_says_whose_fault_it_is(action: Any, reach: bool, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        events(EmitTokens("s", (), (), "failed"), action=action, reach=lambda: reach)


def test_each_device_knows_whom_it_lost() -> None:
    watch = RunObserver(["a", "b"])
    for event in (PeerLost("x"), PeerLost("y"), PeerRestored("x")):
        watch.event_handled("a", event, 0.0, ())
    watch.event_handled("cloud-0", PeerLost("b"), 0.0, ())
    assert (watch.has_lost_peer("a"), watch.has_lost_peer("b")) == (True, False)
    watch.event_handled("a", PeerRestored("y"), 0.0, ())
    assert not watch.has_lost_peer("a")


def test_lines_hold_any_text() -> None:
    assert (
        encode_sse([("token", {"text": "a\n\nevent: x\r"})])
        == b'event: token\ndata: {"text": "a\\n\\nevent: x\\r"}\n\n'
    )
