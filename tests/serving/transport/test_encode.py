"""Every message round trips: the decoded message equals the encoded one."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.messages import (
    INF,
    CacheMiss,
    DraftTree,
    Hop,
    LoadReport,
    Message,
    PathStats,
    Release,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    TensorRef,
    Verdict,
)
from serving.transport.frame import Envelope, FrameDecoder, encode_message
from serving.transport.limits import Limits, PeerExpectations
from tests.serving.transport.wire_rows import frame_of

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
stats = st.builds(PathStats, positive, st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 16), positive)
hops = st.builds(Hop, names, spans, st.sampled_from(("last", "all")))


def trees(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(-1, i - 1) for i in range(n)))


@st.composite
def slices(draw: st.DrawFn, embedding: bool) -> SequenceSlice:
    rule = draw(st.sampled_from(("", "greedy", "sample")))
    num_tokens = draw(st.integers(1, 12))
    num_drafts = draw(st.integers(0, num_tokens - 1)) if rule else 0
    hidden = None if embedding and draw(st.booleans()) else TensorRef(draw(names), draw(st.integers(0, 1 << 40)))
    num_ids = num_tokens if embedding else draw(st.sampled_from((0, num_drafts)))
    return SequenceSlice(
        draw(names), draw(few), num_tokens, draw(st.tuples(*[ints] * num_ids)), num_drafts, rule,  # type: ignore[arg-type]
        draw(samplings if rule == "sample" else st.none() | samplings), draw(st.none() | trees(num_drafts)),
        draw(keeps), hidden, draw(st.sampled_from(((), tuple(TensorRef(f"probs/{i}", i) for i in range(num_drafts))))),
    )  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> Request:
    path_hops = draw(st.lists(hops, min_size=1, max_size=16).map(tuple))
    index = draw(st.integers(0, len(path_hops) - 1))
    path = draw(st.lists(names, min_size=index + 1, max_size=len(path_hops)).map(tuple))
    return Request(
        draw(ints), draw(slices(path_hops[index].span.embedding)), path_hops, index, path, draw(names),
        draw(st.integers(1, 99)), draw(st.floats(-1e9, 1e9) | st.just(INF)), draw(st.floats(0, 1000)),
        draw(st.lists(names, max_size=3).map(tuple)), draw(tokens), draw(st.floats(0, 1e6)), draw(st.floats(0, 1e9)),
        draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)), draw(st.none() | stats),
    )  # fmt: skip


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    size = draw(st.none() | st.integers(0, 9))
    next_tree = None if size is None else DraftTree(draw(st.tuples(*[ints] * size)), draw(trees(size)))
    return Verdict(draw(few), draw(ints), draw(keeps), next_tree)


replies = st.builds(
    Reply, names, ints, few, verdicts(), st.lists(names, max_size=16).map(tuple), few, st.floats(0, 1e9),
    st.none() | stats,
)  # fmt: skip
others = st.one_of(
    st.builds(CacheMiss, names, ints, names),
    st.builds(Release, names),
    st.builds(LoadReport, st.just("cloud-0"), positive, positive, positive, positive | st.just(INF)),
)


def through(message: Message, sender: str = "cloud-0") -> Message:
    to = message.path[message.hop_index] if isinstance(message, Request) else "device-0"
    decoder = FrameDecoder(Limits(), PeerExpectations(), with_tensors=False)
    found, received = decoder.decode(encode_message(sender, to, message))
    assert isinstance(found, Envelope)
    assert (found.sender, found.to) == (sender, to)
    assert not received
    return found.message


def renamed(message: Request) -> Request:
    """With the tensor ids of the receiver."""
    seq = message.slice
    probs = tuple(TensorRef(f"@cloud-0/{ref.id}", ref.nbytes) for ref in seq.draft_probs)
    hidden = TensorRef(f"@cloud-0/{seq.hidden_states.id}", seq.hidden_states.nbytes) if seq.hidden_states else None
    return replace(message, slice=replace(seq, hidden_states=hidden, draft_probs=probs))


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
        encode_message("a", "b", CacheMiss("s", -1, "a"))


def test_the_reply_in_the_documentation_is_what_is_sent() -> None:
    text = (Path(__file__).parents[3] / "docs" / "transport.md").read_text(encoding="utf-8")
    (example,) = re.findall(r'^    (\["Envelope", "cloud-0".*\])$', text, re.MULTILINE)
    reply = Reply("s", 3, 100, Verdict(3, 12345), ("cloud-0",), 0, 0.0123456)
    frame = encode_message("cloud-0", "device-0", reply)
    assert frame == frame_of(json.loads(example))
    assert len(frame) == 66
