"""The page's parts, each by itself: files, figures, offers, provisions, looks, half characters."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from endpoint.fake_gateway import FakeTokenizer
from fake_setup import LAYERS, setup
from fake_world import policy as fake_policy
from fake_world import world
from page.made import PF, named, routed, router

from serving.cast import Cast
from serving.endpoint.errors import ApiError
from serving.endpoint.text import decode
from serving.messages import (
    REPLY_NBYTES,
    Begin,
    Call,
    Deliver,
    Drafted,
    Generate,
    Joined,
    Lost,
    Received,
    Reply,
    Routing,
    Stop,
    Verdict,
)
from serving.packing import Factor
from serving.page import files
from serving.page.cast import NamedCast
from serving.page.measures import Meter
from serving.page.models import shares
from serving.page.offer import Offer
from serving.page.options import Page
from serving.page.question import Question, question
from serving.page.run import Run, lines
from serving.page.show import Show
from serving.page.watch import Watch
from serving.policy import Policy
from serving.provision import PLAIN
from serving.recorder import Record
from serving.remote.server import Server
from serving.service import Service
from serving.slots.link_loss import LinkLoss

# The files.


def test_nothing_of_the_page_is_elsewhere() -> None:
    """No address, no inline script or style, no text taken for HTML; all that is named is there."""
    found = {path: data.decode() for path, data in files.static().items()}
    assert {"/", "/page.css", "/page.js", "/icon.svg"} <= found.keys()
    for path, text in found.items():
        addresses = set(re.findall(r"\w+://[^\s\"'<>`]+", text)) - {"http://www.w3.org/2000/svg"}  # a name, not a place
        assert not addresses, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text), path
        assert not re.search(r"localStorage|sessionStorage|document\.cookie", text), path
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\bstyle=|\bon\w+=", found["/"])
    named_in_html = re.findall(r"(?:src|href)=\"([^\"#]+)\"", found["/"])
    imported = re.findall(r"from \"\./([^\"]+)\"", "".join(found.values()))
    assert {f"/{name}" for name in (*named_in_html, *imported)} <= found.keys()


def test_every_file_has_a_kind() -> None:
    assert {path.rpartition(".")[2] for path in files.static() if path != "/"} <= files.KINDS.keys()


# What figures mean.


def meter(timed: bool = True, afar: bool = False, factor: Factor | None = Factor(PF, "Synera, Table 3")) -> Meter:  # noqa: B008
    bed = setup().hardware
    return Meter(bed.device_fleets[0], bed.cloud, factor, timed, afar)


def record() -> Record:
    found = Record("s", "device-0", 5, arrived_s=10.0, begun_s=10.5)
    found.tokens, found.origins, found.seen_s = [1, 2, 3, 4], ["device", "cloud", "offline", "bonus"], [11, 12, 12, 14]
    found.device_busy_s, found.cloud_busy_s, found.uplink_nbytes, found.downlink_nbytes = 0.5, 0.2, 100, 40
    return found


def test_figures_are_what_their_words_say() -> None:
    bed, found = setup().hardware, meter().read(record(), 14.0)
    assert (found["ttft_ms"], found["tbt_ms"]) == (1000, 1000)
    assert (found["tokens"], found["routed"], found["own"], found["offline"], found["routed_share"]) == (
        4,
        2,
        2,
        1,
        0.5,
    )
    assert found["device_energy_j"] == bed.device_fleets[0].joules(0.5, 3.0)
    assert found["cloud_energy_j"] == bed.cloud.joules(0.2)
    assert found["cloud_cost_ms"] == round(1000 * 1.0 * 0.5 / PF, 3)
    assert found["cloud_busy_ms"] == 200


def test_what_is_not_known_is_no_figure() -> None:
    def unknown(which: Meter) -> set[str]:
        return {key for key, value in which.read(record(), 14.0).items() if value is None}

    assert unknown(meter()) == set()
    assert unknown(meter(timed=False)) == {"device_energy_j", "cloud_energy_j"}
    assert unknown(meter(afar=True)) == {"cloud_energy_j", "cloud_busy_ms"}
    assert unknown(meter(factor=None)) == {"cloud_cost_ms"}
    early = meter().read(Record("s", "device-0", 5, arrived_s=1.0), 1.0)
    assert early["ttft_ms"] is early["tbt_ms"] is early["routed_share"] is None
    words = {each["key"]: each["means"] for each in meter(timed=False, afar=True, factor=None).measures}
    assert "pace=wall" in words["device_energy_j"]
    assert "another process" in words["cloud_busy_ms"]
    assert "not known" in words["cloud_cost_ms"]


# What is offered.


def offer(policy: Policy) -> Offer:
    return Offer(replace(setup(), policy=policy))


def test_a_policy_says_which_modes_it_has_and_why_it_has_no_slider() -> None:
    small = routed()
    small = replace(small, offload=replace(small.offload, mode="small_only"))  # type: ignore[type-var]
    offers = [offer(policy) for policy in (routed(), small, *(setup(n).policy for n in ("edge_centric", "synera")))]
    assert [offer.modes for offer in offers] == [
        ("joint", "small_only"), ("small_only",), ("small_only",), ("joint",)
    ]  # fmt: skip
    assert [bool(offer.about["router"]) for offer in offers] == [True, True, False, False]
    assert "the device writes everything" in offers[2].about["no_slider"]


def test_the_policys_own_threshold_is_where_the_slider_stands_and_the_artifacts_is_marked() -> None:
    found = routed(found=router(threshold=0.3))
    found = replace(found, offload=replace(found.offload, threshold=0.7))  # type: ignore[type-var]
    about = offer(found).about["router"]
    assert (about["threshold"], about["artifact_threshold"]) == (0.7, 0.3)


def test_where_a_server_is_the_large_model_drafts_are_verified_greedily() -> None:
    """What a run is refused for later is refused before it begins, and said."""
    served = replace(setup().pair.cloud, server=Server(base_url="http://127.0.0.1:1/v1", model="m"))
    afar = Offer(setup("sled", pair=replace(setup().pair, cloud=served)))
    warm = json.dumps({"policy": "sled", "prompt": "x", "temperature": 0.5}).encode()
    assert (afar.about["greedy"], Offer(setup("sled")).about["greedy"]) == (True, False)
    with pytest.raises(ApiError, match="sled decodes greedily only"):
        question(warm, {"sled": afar}, 8, 8)
    assert question(warm, {"sled": Offer(setup("sled"))}, 8, 8).sampling


def test_engines_that_are_shared_do_what_each_policy_needs() -> None:
    verifying = setup("sled").policy.provision
    for provisions in ({"a": PLAIN, "b": verifying}, {"b": verifying, "a": PLAIN}):
        ((names, both),) = shares(provisions)
        assert (names, both.verifies) == (list(provisions), True)
    assert not shares({"a": PLAIN, "b": PLAIN})[0][1].verifies


def test_two_routers_of_one_name_need_engines_of_their_own() -> None:
    first, second = (routed(found=router(seed=seed)).provision for seed in (1, 2))
    assert [names for names, _ in shares({"a": first, "b": PLAIN, "c": second})] == [["a", "b"], ["c"]]
    (names, both), = shares({"b": PLAIN, "a": first})  # fmt: skip
    assert (names, both.scorers.keys()) == (["b", "a"], {"route"})
    assert len(shares({"a": PLAIN, "b": replace(PLAIN, block_tokens=32)})) == 2


def test_casts_of_one_driver_have_names_of_their_own() -> None:
    plain, other = Cast(setup(), LAYERS), NamedCast(setup(), LAYERS, prefix="x.")
    assert plain.digest == other.digest
    assert other.devices == ("x.device-0", "x.device-1")
    assert other.workers == ("x.cloud-0",)


# What is seen.


def test_a_look_is_of_the_token_that_stands_or_of_the_devices_own() -> None:
    watch = Watch(["device-0"])
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1, 2), 8)), 0.0, ())
    plain = Generate("s", 0, (1, 2), Stop(2))
    watch.ran("device-0", plain, Drafted((5, 6), {"route": (0.1, 0.2)}, ((5, 7, 8), (6, 7, 8)), False, 4), 0, 1)
    ahead = Generate("s", 3, (), Stop(1), branches=((5,), (5, 9)))
    watch.ran("device-0", ahead, Drafted((3, 4), {"route": (0.3, 0.4)}, ((3, 1, 0), (4, 1, 0)), False, 4), 1, 2)
    looks = {at: watch.look("s", at, token) for at, token in ((2, 5), (3, 99), (4, 3), (5, 4), (6, 1))}
    assert [look and (look.token, look.scores["route"]) for look in looks.values()] == [
        (5, 0.1), (6, 0.2), (3, 0.3), (4, 0.4), None
    ]  # fmt: skip


def test_a_run_that_is_over_is_forgotten_and_what_still_happens_to_it_is_harmless() -> None:
    watch = Watch(["device-0"])
    watch.handled("device-0", Begin(Call("left", (1,), 8)), 0.0, ())
    assert not watch._recorder.records
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1,), 8)), 0.0, ())
    watch.forget("s")
    watch.ran("device-0", Generate("s", 0, (1,), Stop(1)), Drafted((5,), {}, ((5, 6, 7),), False, 1), 0, 1)
    watch.handled("device-0", Lost("cloud-0"), 1.0, (Deliver("s", (), (), "cancelled"),))
    assert not watch._recorder.records


class Left(Watch):
    """Readers that leave when so many events have happened."""

    def __init__(self, devices: list[str], after: int) -> None:
        super().__init__(devices)
        self.after = after

    def handled(self, *what: Any) -> None:
        super().handled(*what)
        self.after -= 1
        if not self.after:
            self.leave()

    def leave(self) -> None:
        for session in list(self._at):
            self.forget(session)


def test_nothing_of_a_run_stays_behind_whenever_its_reader_leaves() -> None:
    """Else a page that is open for long fills the memory."""
    for after in range(1, 60, 3):
        w = world(fake_policy("sled"), devices=2, limit=12)
        watch = Left(["device-0", "device-1"], after)
        for call in w.calls:
            watch.begin(call.session, "device-0")
        w.simulator._observers = (watch,)
        w.run()
        watch.leave()
        assert watch._recorder.records == watch._at == watch._looks == {}
        assert not [desk for desk in watch._recorder._desks.values() if desk.since_s or desk.arrived]
    assert watch._recorder._desks


def test_what_a_remote_cloud_says_is_counted_where_it_arrives() -> None:
    watch = Watch(["device-0"], frozenset(["device-0"]))
    watch.begin("s", "device-0")
    watch.handled("device-0", Begin(Call("s", (1,), 8)), 0.0, ())
    watch.handled("device-0", Received(Reply("s", 0, 1, Verdict(0, 7), ("cloud-0",), 0)), 1.0, ())
    assert watch.record("s").downlink_nbytes == REPLY_NBYTES


# Text.


class Told:
    """Calls whose news a test writes."""

    def __init__(self, watch: Watch, *news: Any) -> None:
        self._watch, self._news = watch, news

    async def follow(self, device: str, call: Call) -> AsyncGenerator[Any, None]:
        self._watch.handled(device, Begin(call), 0.0, ())
        for told in self._news:
            self._watch.handled(device, Lost("nobody"), 1.0, (told,) if isinstance(told, Deliver) else ())
            yield told, 1.0


def events(*news: Any, mode: Any = None, action: Any = "local", reach: Any = lambda: True) -> list[Any]:
    watch, tokenizer = Watch(["device-0"]), FakeTokenizer()
    asked = Question(offer(replace(routed(), link_loss=LinkLoss(action))), "x", 8, None, mode)
    run = Run(asked, (1,), "device-0", "s", Told(watch, *news), watch, meter(), tokenizer, reach)  # type: ignore[arg-type]

    async def play() -> list[Any]:
        return [event async for some in run.events() for event in some]

    return asyncio.run(play())


def test_half_characters_wait_for_their_other_half_and_the_texts_are_the_text() -> None:
    hf = FakeTokenizer().hf
    whole, half = (hf(text, add_special_tokens=False)["input_ids"] for text in ("naïve 🙂 a", "🙂"))
    tokens = (*whole, half[0])
    found = events(*(Deliver("s", (t,), ("device",)) for t in tokens), Deliver("s", (), (), "complete"))
    texts = [token["text"] for token in named(found, "token")]
    assert "" in texts
    assert "".join(texts) + named(found, "done")[0]["tail"] == decode(hf, tokens)
    assert all(token["token"] for token in named(found, "token"))


def test_an_end_token_is_a_token_without_text() -> None:
    end = FakeTokenizer().ends[0]
    found = events(Deliver("s", (end,), ("cloud",)), Deliver("s", (), (), "complete"))
    (token,) = named(found, "token")
    assert (token["text"], token["end"], token["cloud"]) == ("", True, True)
    assert named(found, "counters")[-1]["routed"] == 1
    assert named(found, "done") == [{"ending": "stop", "tail": ""}]


def test_what_was_held_at_an_end_token_is_its_text() -> None:
    """And not the end's: the page would show it as a part of the word `end`."""
    hf, end = FakeTokenizer().hf, FakeTokenizer().ends[0]
    half = hf("🙂", add_special_tokens=False)["input_ids"][0]
    found = events(*(Deliver("s", (t,), ("device",)) for t in (half, end)), Deliver("s", (), (), "complete"))
    first, last = named(found, "token")
    assert (first["text"], last["text"], last["end"]) == ("", decode(hf, (half,)), True)
    assert last["text"]
    assert named(found, "done") == [{"ending": "stop", "tail": ""}]


END = Deliver("s", (), (), "complete")


def test_a_cloud_that_goes_is_told_with_what_the_policy_does_then() -> None:
    said = named(events(Lost("cloud-0"), Lost("cloud-1"), Joined("cloud-0"), Joined("cloud-1"), END), "cloud")
    assert [each["reachable"] for each in said] == [False, True]
    assert "goes on alone" in said[0]["message"]


@pytest.mark.parametrize(
    ("action", "says"), [("local", "goes on alone"), ("wait", "waits for it"), ("fail", "ends a run without it")]
)
def test_a_run_that_begins_while_the_cloud_is_gone_says_so_first(action: Any, says: str) -> None:
    begun, told, *rest = events(Joined("cloud-0"), END, action=action, reach=[False, False].pop)
    assert (begun[0], begun[1]["cloud"], told[0], told[1]["reachable"]) == ("begun", False, "cloud", False)
    assert says in told[1]["message"]
    assert [each["reachable"] for each in named(rest, "cloud")] == [True]


def test_a_cloud_that_goes_before_anybody_follows_is_told_too() -> None:
    said = named(events(END, reach=[True, True, False, True].pop), "cloud")
    assert [each["reachable"] for each in said] == [False, True]


def test_who_asks_nobody_is_not_told_of_a_cloud() -> None:
    found = events(Lost("cloud-0"), END, mode=Routing(small_only=True), reach=lambda: False)
    assert named(found, "cloud") == []


@pytest.mark.parametrize(
    ("action", "reach", "says"),
    [("fail", False, "cloud cannot be reached"), ("fail", True, "broke off"), ("local", False, "broke off")],
)
def test_an_answer_that_breaks_off_says_whose_fault_it_is(action: Any, reach: bool, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        events(Deliver("s", (), (), "failed"), action=action, reach=lambda: reach)


def test_each_device_knows_whom_it_lost() -> None:
    watch = Watch(["a", "b"])
    for event in (Lost("x"), Lost("y"), Joined("x")):
        watch.handled("a", event, 0.0, ())
    watch.handled("cloud-0", Lost("b"), 0.0, ())
    assert (watch.lost("a"), watch.lost("b")) == (True, False)
    watch.handled("a", Joined("y"), 0.0, ())
    assert not watch.lost("a")


def test_lines_hold_any_text() -> None:
    assert lines([("token", {"text": "a\n\nevent: x\r"})]) == b'event: token\ndata: {"text": "a\\n\\nevent: x\\r"}\n\n'


# What cannot be shown.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"host": ""}, "service.page.host is empty"),
        ({"port": 70000}, "service.page.port is 70000"),
        ({"runs": 0}, "service.page.runs is 0"),
        ({"max_tokens": 0}, "service.page.max_tokens is 0"),
        ({"stall_s": 0.0}, "service.page.stall_s"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Page(**options)


def test_two_policies_of_one_kind_have_a_name_each() -> None:
    """The one under which a policy is put beside the first; the first has the first right to its own."""
    strict = routed()
    strict = replace(strict, offload=replace(strict.offload, threshold=0.2))  # type: ignore[type-var]
    shown = Show(replace(setup(), policy=routed()), Service(), {"strict": strict, "citer": strict})
    assert list(shown.setups) == list(shown.offers) == ["citer", "strict"]
    assert [each.name for each in shown.offers.values()] == ["citer", "strict"]
    assert [each.routed and each.routed.at for each in shown.offers.values()] == [0.4, 0.2]
    assert shown.left_out == ()


def test_a_remote_cloud_serves_one_policy_and_the_others_that_need_it_are_left_out() -> None:
    beside = {name: setup(name).policy for name in ("edge_centric", "cloud_centric")}
    afar = Service(page=Page(remote=True))
    shown = Show(replace(setup(), policy=routed()), afar, beside)
    assert list(shown.setups) == ["citer", "edge_centric"]
    assert shown.left_out == ("cloud_centric",)
    with pytest.raises(ValueError, match="edge_centric places nothing in a cloud"):
        Show(setup("edge_centric"), afar)


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "")
    with pytest.raises(ValueError, match="set but empty"):
        Show(setup(), Service())
