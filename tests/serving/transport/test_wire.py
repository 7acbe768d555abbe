"""Every message survives the wire: what is decoded equals what was encoded."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.messages import (
    INF,
    CacheMiss,
    Hop,
    LoadReport,
    Message,
    Release,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    TensorRef,
    Verdict,
)
from serving.transport import encode
from serving.transport.decode import MessageDecoder
from serving.transport.errors import parse_frame
from serving.transport.limits import Limits
from serving.transport.session_ownership import PeerExpectations

names = st.from_regex(r"[A-Za-z0-9._:/-]{1,64}", fullmatch=True)
ints = st.integers(0, 2**31 - 1)
few = st.integers(0, 1000)
tokens = st.lists(ints, max_size=9).map(tuple)
keeps = st.none() | st.lists(few, unique=True, max_size=9).map(tuple)
positive = st.floats(0, 1e300)
samplings = st.builds(
    SamplingParams, st.floats(1e-6, 100), ints, st.floats(1e-6, 1), st.integers(-(2**63), 2**63 - 1)
)  # fmt: skip
spans = st.tuples(few, few, st.booleans(), st.booleans()).map(lambda s: Span(min(s[:2]), max(s[:2]), *s[2:]))
hops = st.builds(Hop, names, spans, st.sampled_from(("last", "all")))


def trees(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(-1, i - 1) for i in range(n)))


@st.composite
def rows(draw: st.DrawFn, embed: bool) -> SequenceSlice:
    rule = draw(st.sampled_from(("", "greedy", "sample", "tree")))
    n = draw(st.integers(1, 12))
    check = draw(st.integers(0, n - 1)) if rule else 0
    blob = None if embed and draw(st.booleans()) else TensorRef(draw(names), draw(st.integers(0, 1 << 40)))
    sent = n if embed else draw(st.sampled_from((0, check)))
    return SequenceSlice(
        draw(names), draw(few), n, draw(st.tuples(*[ints] * sent)), check, rule,  # type: ignore[arg-type]
        draw(samplings if rule == "sample" else st.none() | samplings), draw(st.none() | trees(check)), draw(keeps),
        blob, draw(st.sampled_from(((), tuple(TensorRef(f"odds/{i}", i) for i in range(check))))),
    )  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> Request:
    route = draw(st.lists(hops, min_size=1, max_size=16).map(tuple))
    hop = draw(st.integers(0, len(route) - 1))
    path = draw(st.lists(names, min_size=hop + 1, max_size=len(route)).map(tuple))
    return Request(
        draw(ints), draw(rows(route[hop].span.embedding)), route, hop, path, draw(names), draw(st.integers(1, 99)),
        draw(st.floats(-1e9, 1e9) | st.just(INF)), draw(st.floats(0, 1000)),
        draw(st.lists(names, max_size=3).map(tuple)), draw(tokens), draw(st.floats(0, 1e6)), draw(st.floats(0, 1e9)),
    )  # fmt: skip


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    tree = draw(st.none() | st.integers(0, 9))
    proposal = None if tree is None else (draw(st.tuples(*[ints] * tree)), draw(trees(tree)))
    return Verdict(draw(few), draw(ints), draw(keeps), proposal)


replies = st.builds(Reply, names, ints, few, verdicts(), st.lists(names, max_size=16).map(tuple), few)
others = st.one_of(
    st.builds(CacheMiss, names, ints, names),
    st.builds(Release, names),
    st.builds(LoadReport, st.just("cloud-0"), positive, positive, positive, positive | st.just(INF)),
)


def through(message: Message, sender: str = "cloud-0") -> Message:
    to = message.path[message.hop_index] if isinstance(message, Request) else "device-0"
    wire = parse_frame(encode.encode_message(sender, to, message, None)).envelope
    assert (wire.sender, wire.to) == (sender, to)
    found, carried = MessageDecoder(Limits(), PeerExpectations(), with_tensors=False).message(wire)
    assert not carried
    return found


def renamed(message: Request) -> Request:
    """With blobs named as the receiver names them."""
    own = message.slice
    odds = tuple(TensorRef(f"@cloud-0/{b.id}", b.nbytes) for b in own.draft_probs)
    blob = TensorRef(f"@cloud-0/{own.hidden_states.id}", own.hidden_states.nbytes) if own.hidden_states else None
    return replace(message, slice=replace(own, hidden_states=blob, draft_probs=odds))


@settings(max_examples=100, deadline=None)
@given(requests())
def test_a_request_round_trips(message: Request) -> None:
    assert through(message) == renamed(message)


@settings(max_examples=50, deadline=None)
@given(replies)
def test_a_reply_round_trips(message: Reply) -> None:
    assert through(message) == message


@settings(max_examples=50, deadline=None)
@given(others)
def test_other_messages_round_trip(message: Message) -> None:
    assert through(message) == message


def test_an_absent_list_stays_different_from_an_empty_one() -> None:
    for keep in (None, ()):
        found = through(Reply("s", 0, 0, Verdict(0, 1, keep, None), (), 0))
        assert isinstance(found, Reply)
        assert found.verdict.kept_tree_nodes == keep
        assert (found.verdict.kept_tree_nodes is None) == (keep is None)


def test_a_number_outside_the_schema_is_an_error_when_encoding() -> None:
    with pytest.raises(ValueError, match="range"):
        encode.encode_message("a", "b", CacheMiss("s", -1, "a"), None)
