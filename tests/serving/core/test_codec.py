"""Everything that nodes hear and say, to JSON and back."""

import dataclasses
import json
from random import Random
from typing import Any

import pytest

from serving import messages
from serving.core.codec import Bound, Bounds, Codec, MalformedError, bounded_codec, codec
from serving.messages import (
    INF,
    Command,
    CopyCache,
    DraftBatch,
    DraftBatchOutcome,
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftTree,
    DraftWork,
    DropCache,
    EarlyExitRule,
    EmitTokens,
    Event,
    ForwardWork,
    GenerationRequest,
    Hop,
    LoadReport,
    MessageReceived,
    MoveCache,
    Outcome,
    PathStats,
    Reply,
    Request,
    RequestArrived,
    RoutingOptions,
    SamplingParams,
    SendMessage,
    SequenceSlice,
    SetTimer,
    SliceOutcome,
    Span,
    StartWork,
    StopText,
    TensorRef,
    TreeRule,
    Verdict,
    Work,
    WorkFinished,
)
from tests.support.policies import POLICIES, policy
from tests.support.simulated_nodes import world

BLOB = TensorRef("b/1", 4096)
SAMPLING = SamplingParams(0.7, 50, 0.9, 3)
ROWS_FULL = SequenceSlice("s", 3, 2, (5, 7), 1, "sample", SAMPLING, (-1,), (0,), BLOB, (BLOB, BLOB))
REQUEST = Request(
    4, ROWS_FULL, (Hop("cloud", Span(0, 8, True, True), "all"),), 0, ("cloud-0",), "device-0", 3, 1.5, 2.0, ("margin",),
    (2,), stop_text=StopText(("\n", "###"), "a#"),
)  # fmt: skip
VERDICT = Verdict(1, 9, (0,), DraftTree((4, 5), (-1, 0)))
EVENTS: list[Event] = [
    RequestArrived(GenerationRequest("s ü\n", (1, 2), 24, (2,), SAMPLING, 4.0, INF, stop_strings=("\n",))),
    RequestArrived(GenerationRequest("routed", (1,), 4, routing=RoutingOptions(0.3, small_only=True))),
    MessageReceived(REQUEST),
    MessageReceived(Reply("s", 4, 5, VERDICT, ("cloud-0",), 0)),
    MessageReceived(Reply("s", 4, 5, VERDICT, ("cloud-0",), 0, 0.5, PathStats(20.0, 0.02, 1e-4, 4, 60.0))),
    MessageReceived(LoadReport("cloud-0", 0.25, 0.001, 0.002, INF)),
    WorkFinished(
        3,
        DraftOutcome(
            (1, 2), {"confidence": (0.5, -INF), "margin": ()}, ((1, 2, 3), ()), True, 7, (BLOB,), (20,), (0.75, 1.0)
        ),
    ),
    WorkFinished(3, (SliceOutcome(VERDICT, None), SliceOutcome(None, BLOB))),
    WorkFinished(3, ()),
    WorkFinished(3, DraftBatchOutcome((DraftOutcome((1,), {}, (), False, 0), DraftOutcome((), {}, (), True, 0)))),
    *(kind(1) for kind in (messages.TimerFired, messages.WorkFailed)),
    *(kind("x") for kind in (messages.PeerLost, messages.PeerRestored, messages.SessionCancelled)),
    *(MessageReceived(message) for message in (messages.CacheMiss("s", 1, "cloud-0"), messages.Release("s"))),
]
COMMANDS: list[Command] = [
    StartWork(1, DraftWork("s", 0, (1,), DraftStopRule(4, "confidence", 0.5, False), (2,), ("margin",), SAMPLING,
                      EarlyExitRule("margin", 0.7, 0.25, 1), ((1,), (1, 2)), 2, True, StopText(("\n",)))),
    StartWork(2, ForwardWork(Span(0, 8, True, False), (ROWS_FULL, ROWS_FULL), ("all", "last"), ("importance",))),
    StartWork(3, DraftBatch((DraftWork("s", 0, (1,), DraftStopRule(1)),
                             DraftWork("t", 4, (2,), DraftStopRule(9, tree=TreeRule(3, 2, ((0,), (0, 0)))))))),
    SendMessage("cloud-0", REQUEST, 42),
    SetTimer(INF, 3),
    DropCache("s", None),
    DropCache("s", 4),
    MoveCache("s", "t"),
    CopyCache("s", "t", 32),
    EmitTokens("s", (1, 2), ("accepted", "bonus"), "complete"),
    DraftDecision("s", 3, (1,), {"confidence": (0.5,)}, None),
    DraftDecision("s", 3, (1,), {}, 1, "hit"),
]  # fmt: skip


def there_and_back(kind: Any, thing: Any) -> Any:
    part = codec(kind)
    return part.decode(json.loads(json.dumps(part.encode(thing), allow_nan=False)))


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_events_round_trip_through_json(event: Event) -> None:
    assert there_and_back(Event, event) == event


@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_commands_round_trip_through_json(command: Command) -> None:
    assert there_and_back(Command, command) == command


def test_every_message_class_is_in_these_tests() -> None:
    found: set[str] = set()

    def walk(thing: Any) -> None:
        if dataclasses.is_dataclass(thing):
            found.add(type(thing).__name__)
            for field in dataclasses.fields(thing):
                walk(getattr(thing, field.name))
        elif isinstance(thing, tuple):
            for part in thing:
                walk(part)

    walk((*EVENTS, *COMMANDS))
    assert found == {
        name for name, kind in vars(messages).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }


@pytest.mark.parametrize("name", POLICIES)
def test_commands_of_real_nodes_round_trip(name: str) -> None:
    for _, event, _, commands in world(policy(name)).run().log.entries:
        assert there_and_back(Event, event) == event
        assert there_and_back(tuple[Command, ...], commands) == commands


def test_defaults_are_left_out_and_infinity_is_a_text() -> None:
    call = codec(Event).encode(RequestArrived(GenerationRequest("s", (1,), 4, slo_ttft_s=float("inf"))))["request"]
    assert {"session", "prompt", "max_new_tokens"} <= set(call) <= {"session", "prompt", "max_new_tokens", "slo_ttft_s"}
    assert codec(Command).encode(SetTimer(INF, 1)) == {"is": "SetTimer", "due_s": "inf", "timer": 1}


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (Event, {"is": "os.system"}, r"got 'os.system', not one of RequestArrived, WorkFinished"),
        (Event, {"is": "StartWork", "job": 1}, r"got 'StartWork', not one of"),
        (Event, {"timer": 1}, r"got None, not one of"),
        (Event, 3, r"got 3, not an object"),
        (Event, {"is": "TimerFired", "timer": 1, "at": 2}, r"TimerFired has no 'at'"),
        (Event, {"is": "TimerFired"}, r"TimerFired without timer"),
        (Event, {"is": "TimerFired", "timer": True}, r"TimerFired\.timer: got True, not a whole number"),
        (Event, {"is": "TimerFired", "timer": 1.0}, r"TimerFired\.timer: got 1\.0"),
        (Event, {"is": "RequestArrived", "request": {"session": "s", "prompt": [1, "x"], "max_new_tokens": 1}},
         r"^RequestArrived\.request\.prompt\[1\]: got 'x', not a whole number$"),
        (Outcome, {"is": "DraftOutcome", "tokens": [], "scores": {"m": ["high"]}, "top_candidates": [],
                   "stopped": False, "cached_len": 0},
         r"DraftOutcome\.scores\.m\[0\]: got 'high', not a number"),
        (Outcome, [{"verdict": {"accepted": 0, "next_token": 1, "next_tree": [[1]]}, "hidden_states": None}],
         r"\[0\]\.verdict\.next_tree: got \[\[1\]\], not an object"),
        (Command, {"is": "EmitTokens", "session": "s", "tokens": [], "origins": ["god"]}, r"origins\[0\]: got 'god'"),
        (Command, {"is": "SetTimer", "due_s": "soon", "timer": 1}, r"SetTimer\.due_s: got 'soon', not a number"),
        (Work, [], r"not an object"),
    ],
)  # fmt: skip
def test_malformed_data_are_refused_with_their_place(kind: Any, data: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        codec(kind).decode(data)


def test_damaged_data_are_refused_or_are_another_event() -> None:
    random = Random(1)
    refused = 0
    for event in EVENTS * 40:
        data = json.loads(json.dumps(codec(Event).encode(event)))
        _damage(data, random)
        try:
            other = codec(Event).decode(data)
        except ValueError:
            refused += 1
        else:
            assert there_and_back(Event, other) == other
    assert refused > 200


def _damage(data: Any, random: Random) -> None:
    """Replaces, removes or adds one thing somewhere."""
    keys = list(data) if isinstance(data, dict) else list(range(len(data)))
    if not keys:
        return
    key = random.choice(keys)
    if isinstance(data[key], dict | list) and random.random() < 0.7:
        _damage(data[key], random)
    elif random.random() < 0.2:
        del data[key]
    else:
        data[key] = random.choice([None, True, -1, 2.5, "x", [], {}, [[1]], {"is": "TimerFired"}, "inf"])


def test_an_unsupported_field_type_is_refused_when_the_codec_is_built() -> None:
    with pytest.raises(TypeError, match="no codec for set"):
        codec(set[int])
    with pytest.raises(TypeError, match="would be open"):
        codec(DraftStopRule | dict[str, int])


# The form between hosts.


@dataclasses.dataclass(frozen=True)
class Shelf:
    name: str
    books: tuple[int, ...] = ()
    height_m: float = 1.0

    def __post_init__(self) -> None:
        if self.name == "none":
            raise ValueError("a shelf needs a name")


DEFAULTS = {int: Bound(0, 9), float: Bound(0, 2), str: Bound(pattern="[a-z]+")}


def bounded(rows: dict[str, Bound], kind: Any = Shelf) -> Codec:
    return bounded_codec(kind, Bounds(DEFAULTS, {Shelf: rows}, {}))


def test_a_bounded_codec_writes_the_fields_in_their_order_without_trailing_defaults() -> None:
    part = bounded({"books": Bound(0, 9, max_len=2)})
    assert part.encode(Shelf("a")) == ["a"]
    assert part.encode(Shelf("a", (), 1.5)) == ["a", (), 1.5]
    assert part.decode(["a", [], 1.5]) == Shelf("a", (), 1.5)
    either = bounded({"books": Bound(0, 9, max_len=2)}, Shelf | Span)
    assert either.encode(Shelf("a")) == ["Shelf", "a"]
    assert either.decode(["Span", 1, 2]) == Span(1, 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "Shelf of 0 fields, must be 1 to 3"),
        (["a", [], 1.0, 4], "Shelf of 4 fields, must be 1 to 3"),
        (["A"], r"name: got 'A', not a text of the form \[a-z\]\+"),
        (["a", [1, 2, 3]], "books: 3 entries, must be 0 to 2"),
        (["a", [10]], "books: values 10 to 10 are out of range, must be 0 to 9"),
        (["a", [], 2.5], "height_m: 2.5 must be a finite number of 0 to 2"),
        (["a", [], float("nan")], "height_m: nan must be a finite number"),
        (["none"], "a shelf needs a name"),
        ({"name": "a"}, "not a list"),
    ],
)
def test_data_out_of_bounds_are_refused_with_their_place(data: Any, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        bounded({"books": Bound(0, 9, max_len=2)}).decode(data)


def test_a_whole_number_out_of_bounds_is_refused_when_encoding() -> None:
    with pytest.raises(ValueError, match=r"out of range, must be 0 to 9"):
        bounded({"books": Bound(0, 9, max_len=2)}).encode(Shelf("a", (10,)))


def test_a_table_of_bounds_names_all_sequences_and_only_fields_that_exist() -> None:
    with pytest.raises(TypeError, match=r"Shelf\.books: no bound on the entries"):
        bounded({})
    with pytest.raises(TypeError, match="Shelf has no pages, but a bound for it"):
        bounded({"books": Bound(0, 9, max_len=2), "pages": Bound(0, 9)})
