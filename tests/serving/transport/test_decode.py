"""Fields out of bounds are refused with an error that names the field."""

import struct
import tracemalloc

import pytest

from native import loader
from serving.messages import (
    INF,
    CacheMiss,
    DraftTree,
    Hop,
    LoadReport,
    Release,
    Reply,
    Request,
    SamplingParams,
    Span,
    TensorRef,
    Verdict,
)
from serving.transport.frame import Envelope, FrameDecoder, Goodbye, Hello, encode_message
from serving.transport.limits import Limits, PeerExpectations, ProtocolError
from serving.transport.tensors import PackedTensor, TensorHeader
from tests.serving.transport.transport_peers import ROUTE, request
from tests.serving.transport.wire_rows import changed, frame_of, packed, row, with_tensors

KNOWN = PeerExpectations(vocab_size=1000, hidden_size=4, hops=ROUTE)
ENVELOPE = Envelope("device-0", "cloud-0", request())


def refused(frame: bytes, tensors: bool = False, known: PeerExpectations = KNOWN) -> str:
    with pytest.raises(ProtocolError) as caught:
        FrameDecoder(Limits(max_tokens=100), known, tensors).decode(frame)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value.text


def test_a_valid_frame_is_what_the_tests_change() -> None:
    decoder = FrameDecoder(Limits(max_tokens=100), KNOWN, with_tensors=False)
    assert decoder.decode(frame_of(ENVELOPE)) == (ENVELOPE, [])
    assert decoder.decode(encode_message("device-0", "cloud-0", request())) == (ENVELOPE, [])


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("message.slice.session", "", "slice.session"),
        ("message.slice.session", "x" * 65, "slice.session"),
        ("message.slice.session", "a b", "slice.session"),
        ("message.slice.session", "a\n", "slice.session"),
        ("message.slice.tokens", [1, 2, 1000], "slice.tokens"),
        ("message.slice.tokens", [1, 2, -1], "slice.tokens"),
        ("message.slice.tokens", [1, 2], "slice.tokens"),
        ("message.slice.num_tokens", 0, "slice.num_tokens"),
        ("message.slice.start", 98, "slice.num_tokens"),
        ("message.slice.start", 2**32 - 1, "slice.start"),
        ("message.slice.num_drafts", 3, "slice.num_drafts"),
        ("message.slice.rule", "maybe", "slice.rule"),
        ("message.slice.rule", "sample", "slice.sampling"),
        ("message.slice.rule", "", "slice.num_drafts"),
        ("message.slice.sampling", SamplingParams(float("nan"), 0, 0.5, 0), "temperature"),
        ("message.slice.sampling", SamplingParams(INF, 0, 0.5, 0), "temperature"),
        ("message.slice.sampling", SamplingParams(0.0, 0, 0.5, 0), "temperature must be at least 1e-06"),
        ("message.slice.sampling", SamplingParams(1e-40, 0, 0.5, 0), "temperature must be at least 1e-06"),
        ("message.slice.parents", [0], "slice.parents"),
        ("message.slice.parents", [-1, 0], "slice.parents"),
        ("message.slice.kept_tree_nodes", [1, 1], "slice.kept_tree_nodes"),
        ("message.slice.kept_tree_nodes", [-1], "slice.kept_tree_nodes"),
        ("message.slice.hidden_states", TensorRef("a b", 0), "slice.hidden_states"),
        ("tensors", (TensorHeader("fp32", (3, 4)),), "slice.hidden_states"),
        ("message.slice.draft_probs", (TensorRef("a", 0),) * 2, "slice.draft_probs"),
        ("message.hop_index", 1, "Request.hop_index"),
        ("message.path", [], "Request.path"),
        ("message.path", ["cloud-0"] * 17, "Request.path"),
        ("message.path", ["cloud-1"], "Request.path"),
        ("message.hops", [], "Request.hops"),
        ("message.hops", [Hop("cloud", Span(0, 0))] * 17, "Request.hops"),
        ("message.hops", [Hop("cloud", Span(0, 0))], "hops of this run's policy"),
        ("message.hops", [Hop("cloud", Span(0, 0), "some")], "hops[0].hidden_export"),
        (
            "message.hops",
            [Hop("cloud", Span(3, 2))],
            "span.start_layer",
        ),
        ("message.reply_to", "", "reply_to"),
        ("message.budget", 0, "Request.budget"),
        ("message.budget", 101, "Request.budget"),
        ("message.budget", 99, "Request.budget: 99 behind 2 tokens exceed 100 tokens"),
        ("message.slack_s", float("nan"), "Request.slack_s"),
        ("message.expected_tokens", float("inf"), "Request.expected_tokens"),
        ("message.expected_tokens", -1.0, "Request.expected_tokens"),
        ("message.requested_outputs", ["heads"] * 17, "Request.requested_outputs"),
        ("message.stop_tokens", [1] * 257, "Request.stop_tokens"),
        ("message.stop_tokens", [5000], "Request.stop_tokens"),
        ("message.attempt", 2**31, "Request.attempt"),
        ("message", Release(""), "Release.session"),
        ("message", CacheMiss("", 1, "cloud-0"), "CacheMiss.session"),
        ("message", LoadReport("cloud-0", 0, 0, 0, 0), "LoadReport.node"),
    ],
)
@pytest.mark.skipif(loader.in_use, reason="a compiled message cannot be made invalid")
def test_an_invalid_field_is_refused_by_name(path: str, value: object, field: str) -> None:
    assert field in refused(frame_of(changed(ENVELOPE, path, value)))


def test_a_budget_may_fill_the_session() -> None:
    asked = changed(ENVELOPE, "message.budget", 98)
    assert FrameDecoder(Limits(max_tokens=100), KNOWN, with_tensors=False).decode(frame_of(asked)) == (asked, [])


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("sender", 3, "Envelope.sender: got 3, not a text"),
        ("tensors", 3, "Envelope.tensors: got 3, not a list"),
        ("message.slice", [], "Request.slice: SequenceSlice of 0 fields, must be 4 to"),
        ("message.slice", "abcdefgh", "Request.slice: got 'abcdefgh', not a list"),
        ("message.slice.session", None, "Request.slice.session: got None"),
        ("message.slice.session", b"s", "Frame"),  # binary values are outside the header
        ("message.slice.start", True, "Request.slice.start: got True"),
        ("message.slice.start", 0.0, "Request.slice.start: got 0.0"),
        ("message.slice.start", 2**64 - 1, "Request.slice.start: 18446744073709551615 is out of range"),
        ("message.slice.start", -1, "Request.slice.start: -1 is out of range"),
        ("message.slice.tokens", [1, "2", 3], "Request.slice.tokens[1]: got '2'"),
        ("message.slice.tokens", [1, True, 3], "Request.slice.tokens[1]: got True"),
        ("message.slice.tokens", list(range(101)), "Request.slice.tokens: 101 entries, must be 0 to 100"),
        ("message.slice.rule", 1, "Request.slice.rule: got 1"),
        ("message.slice.hidden_offset", 1, "Request.slice.hidden_offset"),
        ("message.slice.parents", [-2], "Request.slice.parents"),
        ("message.hops", [[[]]], "Request.hops[0]"),
        ("message.hops", {"0": 1}, "Frame"),  # the header has no maps
        ("message.budget", "1", "Request.budget: got '1'"),
        ("message.slack_s", -INF, "Request.slack_s"),
        ("message.sent_s", INF, "Request.sent_s"),
        ("message.sent_s", float("nan"), "Request.sent_s"),
        ("message.path", [["cloud-0"]], "Request.path[0]: got"),
        ("message", LoadReport("device-0", float("nan"), 0, 0, 0), "LoadReport.queued_s"),
        ("message", LoadReport("device-0", 0, 0, 0, float("nan")), "LoadReport.free_tokens"),
    ],
)
@pytest.mark.skipif(loader.in_use, reason="a compiled message cannot be made invalid")
def test_a_value_of_another_type_is_refused_by_name(path: str, value: object, field: str) -> None:
    assert field in refused(frame_of(changed(ENVELOPE, path, value)))


def test_an_empty_envelope_is_refused() -> None:
    assert "Envelope of 2 fields, must be 3 to 4" in refused(frame_of(["Envelope", "device-0", "cloud-0"]))
    assert "Envelope.message: got None, not one of Request" in refused(
        frame_of(["Envelope", "device-0", "cloud-0", []])
    )


@pytest.mark.parametrize("name", ["Frame", "Span", "GenerationRequest", "os.system", "", 3, None, ["Request"]])
def test_an_unknown_kind_is_refused(name: object) -> None:
    assert "not one of Request, Reply" in refused(frame_of(["Envelope", "device-0", "cloud-0", [name, "s"]]))
    assert "not one of Hello, Envelope, Goodbye" in refused(frame_of([name, "s"]))


def test_a_field_too_many_or_too_few_is_refused() -> None:
    for header in (row(ENVELOPE), row(Goodbye("bye"))):
        assert "fields, must be" in refused(frame_of([*header, 0]))
        assert "fields, must be" in refused(frame_of(header[:1]))
    assert "Release of 2 fields, must be 1 to 1" in refused(frame_of([*row(ENVELOPE)[:3], ["Release", "s", "t"]]))


VALID = frame_of(ENVELOPE)


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0",
        VALID[:-1],  # truncated
        (len(VALID) - 3).to_bytes(4, "little") + VALID[4:],  # a header longer than its frame
        b"\xff\xff\xff\xff" + VALID[4:],
        b"\0\0\0\0" + VALID[4:],
        (len(VALID) - 5).to_bytes(4, "little") + VALID[4:],  # a header that ends early
        VALID + b"x",  # bytes that belong to no tensor
        frame_of(0),
        b"\x01\0\0\0\xc1",  # no MessagePack
        (5000).to_bytes(4, "little") + b"\x91" * 5000,  # lists in lists
        (5).to_bytes(4, "little") + b"\xdd\xff\xff\xff\xff",  # a list that claims 4 G entries
        (5).to_bytes(4, "little") + b"\xdb\xff\xff\xff\xff",  # a text that claims 4 GiB
    ],
    ids=range(12),
)
def test_bytes_that_are_no_frame_are_refused(frame: bytes) -> None:
    assert "rame" in refused(frame)


def test_a_header_above_its_limit_is_refused_before_it_is_parsed() -> None:
    limits = Limits(max_tokens=100)
    frame = frame_of([[]] * limits.header_nbytes)
    tracemalloc.start()
    try:
        text = refused(frame)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "their header would end at" in text
    assert most < 100_000


def test_lists_that_claim_entries_allocate_no_more_than_the_limits_allow() -> None:
    header = b"\xdd\x00\x01\xff\xff" * 200  # each list claims to hold 131,071 more
    tracemalloc.start()
    try:
        refused(len(header).to_bytes(4, "little") + header)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        (Verdict(101, 1), "accepted"),
        (Verdict(0, 1000), "verdict.next_token"),
        (Verdict(0, 1, (3, 3)), "verdict.kept_tree_nodes"),
        (Verdict(0, 1, None, DraftTree((1, 2), (-1,))), "number of parents"),
        (Verdict(0, 1, None, DraftTree((1, 2), (-1, 1))), "next_tree.parents"),
    ],
)
def test_a_verdict_out_of_bounds_is_refused(verdict: Verdict, field: str) -> None:
    assert field in refused(frame_of(Envelope("c", "d", Reply("s", 0, 0, verdict, (), 0))))


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (None, "must travel"),
        (packed("fp64", [3, 4], b"x" * 96), "dtype"),
        (packed("fp16", [3, 4], b"x" * 23), "23 bytes"),
        (packed("fp16", [2**31 - 1] * 4, b""), "0 bytes"),
        (packed("fp16", [0], b""), "shape"),
        (packed("fp16", [], b""), "shape"),
        (packed("fp16", [12], b"x" * 24), "dimensions"),
        (packed("fp16", [2, 4], b"x" * 16), "rows"),
        (packed("fp16", [3, 5], b"x" * 30), "width"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tensor: PackedTensor | None, field: str) -> None:
    envelope = changed(ENVELOPE, "message.slice.hidden_states", TensorRef("h", 24))
    assert field in refused(frame_of(*with_tensors(envelope, *([tensor] if tensor else []))), tensors=True)


def sparse(*entries: tuple[int, float], width: int = 4) -> PackedTensor:
    """A sparse distribution as `serving.engines.torch.sampling.encode_probs` packs it."""
    data = b"".join(struct.pack("<He" if width == 4 else "<Ie", *entry) for entry in entries)
    return packed("int8", [len(entries), width], data)


def sends(tensor: PackedTensor) -> bytes:
    envelope = changed(ENVELOPE, "message.slice.draft_probs", (TensorRef("probs/s/1", 4),))
    return frame_of(*with_tensors(envelope, tensor))


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (sparse((1000, 1.0)), "tokens"),
        (sparse((3, 0.5), (65_535, 0.5)), "tokens: values 3 to 65535"),
        (sparse((2**31, 1.0), width=6), "tokens: values"),
        (sparse((3, 0.5), (3, 0.5)), "ascending"),
        (sparse((4, 0.5), (3, 0.5)), "ascending"),
        (sparse((3, 0.5), (4, -0.5)), "0 or more"),
        (sparse((3, float("nan"))), "finite"),
        (sparse((3, 0.5), (4, float("inf"))), "finite"),
        (sparse((3, 0.0), (4, 0.0)), "at least one above"),
        (sparse(*((i, 0.5) for i in range(1001))), "tokens: 1001"),
        (packed("int8", [4], b"\0\0\0\x3c"), "dimensions"),
        (packed("int8", [1, 4, 1], b"\0\0\0\x3c"), "dimensions"),
        (packed("int8", [1, 5], b"\0\0\0\x3c\0"), "5 bytes a token"),
        (packed("int8", [2, 4], b"\0\0\0\x3c"), "4 bytes"),
        (packed("int8", [0, 4], b""), "shape"),
        (packed("fp16", [1, 2], b"\0" * 4), "dimensions"),
        (packed("fp16", [1001], b"\0" * 2002), "slice.draft_probs: tokens"),
        (packed("fp64", [1], b"\0" * 8), "dtype"),
    ],
)
def test_an_invalid_distribution_is_refused(tensor: PackedTensor, field: str) -> None:
    assert field in refused(sends(tensor), tensors=True)


@pytest.mark.parametrize(
    "tensor",
    [
        sparse((0, 1.0)),
        sparse((7, 0.25), (999, 0.75)),
        sparse((7, 0.25), (999, 0.75), width=6),
        sparse((7, 0.0), (8, 6e-8)),
        sparse(*((i, 0.5) for i in range(1000))),
        packed("fp16", [1000], b"\0\x3c" * 1000),
        packed("fp32", [7], b"\0\0\x80\x3f" * 7),
    ],
)
def test_sparse_and_dense_distributions_are_accepted_without_sampling(tensor: PackedTensor) -> None:
    frame, received = FrameDecoder(Limits(), KNOWN, with_tensors=True).decode(sends(tensor))
    assert isinstance(frame, Envelope)
    assert isinstance(frame.message, Request)
    assert (frame.message.slice.rule, frame.message.slice.sampling) == ("greedy", None)
    assert received == [(TensorRef("@device-0/probs/s/1", 4), tensor)]


def test_with_an_unknown_vocabulary_token_ids_are_bounded_by_int32() -> None:
    frame = sends(sparse((2**31 - 1, 1.0), width=6))
    FrameDecoder(Limits(), PeerExpectations(), with_tensors=True).decode(frame)
    assert "tokens" in refused(sends(sparse((2**31, 1.0), width=6)), tensors=True, known=PeerExpectations())


def test_a_hop_without_embedding_needs_hidden_states() -> None:
    envelope = changed(ENVELOPE, "message.hops", (Hop("cloud", Span(0, 8, False, True)),))
    assert "hidden states" in refused(frame_of(envelope), known=PeerExpectations())


def test_hosts_of_different_runs_are_refused_with_the_difference() -> None:
    here = Hello(("cloud-0",), config_digest="aa")
    for other in (
        Hello(("d",), config_digest="bb"),
        Hello(("d",), "aa", protocol=99),
        Hello(("d",), "aa", version="9"),
    ):
        with pytest.raises(ProtocolError) as caught:
            here.check_peer(other.encoded, Limits())
        assert caught.value.code == "FAILED_PRECONDITION"
        assert here.summary in caught.value.text
        assert other.summary in caught.value.text
    with pytest.raises(ProtocolError, match="without tensors"):
        here.check_peer(Hello(("d",), "aa", sends_tensors=True).encoded, Limits())
    assert here.check_peer(Hello(("d",), "aa", boot_id="b").encoded, Limits()) == Hello(("d",), "aa", boot_id="b")


def test_two_hosts_cannot_have_the_same_node() -> None:
    with pytest.raises(ProtocolError, match="both sides"):
        Hello(("a", "b")).check_peer(Hello(("b",)).encoded, Limits())


def test_unknown_hops_are_not_checked() -> None:
    other = request()
    other = type(other)(0, other.slice, (Hop("x", Span(0, 2, True, True)),), 0, ("cloud-0",), "device-0")
    frame, received = FrameDecoder(Limits(), PeerExpectations(), with_tensors=False).decode(
        encode_message("device-0", "cloud-0", other)
    )
    assert (frame, received) == (Envelope("device-0", "cloud-0", other), [])
