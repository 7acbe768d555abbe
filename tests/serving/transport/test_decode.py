"""Fields out of bounds are refused with an error that names the field."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from serving.messages import DraftTree, Hop, Reply, Request, Span, TensorRef, Verdict
from serving.transport import encode
from serving.transport import tandem_pb2 as pb
from serving.transport.decode import MessageDecoder
from serving.transport.errors import ProtocolError, parse_frame
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.session_ownership import PeerExpectations
from tests.serving.transport.transport_peers import ROUTE, request

KNOWN = PeerExpectations(vocab_size=1000, hidden_size=4, hops=ROUTE)


def refused(change: Callable[[Any], object], tensors: bool = False, known: PeerExpectations = KNOWN) -> str:
    frame = parse_frame(encode.encode_message("device-0", "cloud-0", request(), None))
    decoder = MessageDecoder(Limits(max_tokens=100), known, tensors)
    decoder.message(frame.envelope)  # only the change is refused
    change(frame.envelope)
    with pytest.raises(ProtocolError) as caught:
        decoder.message(frame.envelope)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value.text


def put(path: str, value: object) -> Callable[[Any], object]:
    """Sets `a.b.c`, or extends it where it is a list."""

    def change(envelope: Any) -> None:
        *way, last = path.split(".")
        for step in way:
            envelope = getattr(envelope, step)
        if isinstance(value, list):
            del getattr(envelope, last)[:]
            getattr(envelope, last).extend(value)
        else:
            setattr(envelope, last, value)

    return change


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("request.slice.session", "", "slice.session"),
        ("request.slice.session", "x" * 65, "slice.session"),
        ("request.slice.session", "a b", "slice.session"),
        ("request.slice.session", "a\n", "slice.session"),
        ("request.slice.tokens", [1, 2, 1000], "slice.tokens"),
        ("request.slice.tokens", [1, 2, -1], "slice.tokens"),
        ("request.slice.tokens", [1, 2], "slice.tokens"),
        ("request.slice.num_tokens", 0, "slice.num_tokens"),
        ("request.slice.start", 98, "slice.num_tokens"),
        ("request.slice.start", 2**32 - 1, "slice.start"),
        ("request.slice.num_drafts", 3, "slice.num_drafts"),
        ("request.slice.rule", "maybe", "slice.rule"),
        ("request.slice.rule", "sample", "slice.sampling"),
        ("request.slice.rule", "", "slice.num_drafts"),
        ("request.slice.sampling.temperature", float("nan"), "temperature"),
        ("request.slice.sampling.temperature", float("inf"), "temperature"),
        ("request.slice.sampling.top_p", 0.5, "temperature and top_p must be above 0"),
        ("request.slice.parents.values", [0], "slice.parents"),
        ("request.slice.parents.values", [-1, 0], "slice.parents"),
        ("request.slice.kept_tree_nodes.values", [1, 1], "slice.kept_tree_nodes"),
        ("request.slice.kept_tree_nodes.values", [-1], "slice.kept_tree_nodes"),
        ("request.slice.hidden_states.id", "a b", "slice.hidden_states"),
        ("request.slice.hidden_states.tensor.dtype", "fp32", "slice.hidden_states"),
        ("request.slice.draft_probs", [pb.TensorRef(id="a")] * 2, "slice.draft_probs"),
        ("request.hop_index", 1, "request.hop_index"),
        ("request.path", [], "request.path"),
        ("request.path", ["cloud-0"] * 17, "request.path"),
        ("request.path", ["cloud-1"], "request.path"),
        ("request.hops", [], "request.hops"),
        ("request.hops", [pb.Hop(node="cloud", hidden_export="last")] * 17, "request.hops"),
        ("request.hops", [pb.Hop(node="cloud", hidden_export="last")], "hops of this run's policy"),
        ("request.hops", [pb.Hop(node="cloud", hidden_export="some")], "hops.hidden_export"),
        (
            "request.hops",
            [pb.Hop(node="cloud", hidden_export="last", span=pb.Span(start_layer=3, end_layer=2))],
            "span.start_layer",
        ),
        ("request.reply_to", "", "reply_to"),
        ("request.budget", 0, "request.budget"),
        ("request.budget", 101, "request.budget"),
        ("request.slack_s", float("nan"), "request.slack_s"),
        ("request.expected_tokens", float("inf"), "request.expected_tokens"),
        ("request.expected_tokens", -1.0, "request.expected_tokens"),
        ("request.requested_outputs", ["heads"] * 17, "request.requested_outputs"),
        ("request.stop_tokens", [1] * 257, "request.stop_tokens"),
        ("request.stop_tokens", [5000], "request.stop_tokens"),
        ("request.attempt", 2**31, "request.attempt"),
        ("release.session", "", "release.session"),
        ("cache_miss.attempt", 1, "cache_miss.session"),
        ("load_report.node", "cloud-0", "load_report.node"),
    ],
)
def test_an_invalid_field_is_refused_by_name(path: str, value: object, field: str) -> None:
    assert field in refused(put(path, value))


def test_an_empty_envelope_is_refused() -> None:
    assert "is missing" in refused(lambda envelope: envelope.ClearField("request"))


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
    frame = parse_frame(encode.encode_message("c", "d", Reply("s", 0, 0, verdict, (), 0), None))
    with pytest.raises(ProtocolError, match=field):
        MessageDecoder(Limits(max_tokens=100), KNOWN, with_tensors=False).message(frame.envelope)


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (None, "must travel"),
        (pb.Tensor(dtype="fp64", shape=[3, 4], data=b"x" * 96), "dtype"),
        (pb.Tensor(dtype="fp16", shape=[3, 4], data=b"x" * 23), "23 bytes"),
        (pb.Tensor(dtype="fp16", shape=[2**31 - 1] * 4, data=b""), "0 bytes"),
        (pb.Tensor(dtype="fp16", shape=[0], data=b""), "shape"),
        (pb.Tensor(dtype="fp16", shape=[], data=b""), "shape"),
        (pb.Tensor(dtype="fp16", shape=[12], data=b"x" * 24), "dimensions"),
        (pb.Tensor(dtype="fp16", shape=[2, 4], data=b"x" * 16), "rows"),
        (pb.Tensor(dtype="fp16", shape=[3, 5], data=b"x" * 30), "width"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tensor: pb.Tensor | None, field: str) -> None:
    def change(envelope: pb.Envelope) -> None:
        envelope.request.slice.hidden_states.CopyFrom(pb.TensorRef(id="h", nbytes=24, tensor=tensor))

    assert field in refused(change, tensors=True)


def sparse(*entries: tuple[int, float], width: int = 4) -> pb.Tensor:
    """A sparse distribution as `serving.engines.torch.sampling.encode_probs` packs it."""
    data = b"".join(struct.pack("<He" if width == 4 else "<Ie", *entry) for entry in entries)
    return pb.Tensor(dtype="int8", shape=[len(entries), width], data=data)


def sends(tensor: pb.Tensor) -> Callable[[Any], object]:
    def change(envelope: pb.Envelope) -> None:
        del envelope.request.slice.draft_probs[:]
        envelope.request.slice.draft_probs.append(pb.TensorRef(id="probs/s/1", nbytes=4, tensor=tensor))

    return change


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
        (pb.Tensor(dtype="int8", shape=[4], data=b"\0\0\0\x3c"), "dimensions"),
        (pb.Tensor(dtype="int8", shape=[1, 4, 1], data=b"\0\0\0\x3c"), "dimensions"),
        (pb.Tensor(dtype="int8", shape=[1, 5], data=b"\0\0\0\x3c\0"), "5 bytes a token"),
        (pb.Tensor(dtype="int8", shape=[2, 4], data=b"\0\0\0\x3c"), "4 bytes"),
        (pb.Tensor(dtype="int8", shape=[0, 4], data=b""), "shape"),
        (pb.Tensor(dtype="fp16", shape=[1, 2], data=b"\0" * 4), "dimensions"),
        (pb.Tensor(dtype="fp16", shape=[1001], data=b"\0" * 2002), "slice.draft_probs: tokens"),
        (pb.Tensor(dtype="fp64", shape=[1], data=b"\0" * 8), "dtype"),
    ],
)
def test_an_invalid_distribution_is_refused(tensor: pb.Tensor, field: str) -> None:
    assert field in refused(sends(tensor), tensors=True)


@pytest.mark.parametrize(
    "tensor",
    [
        sparse((0, 1.0)),
        sparse((7, 0.25), (999, 0.75)),
        sparse((7, 0.25), (999, 0.75), width=6),
        sparse((7, 0.0), (8, 6e-8)),
        sparse(*((i, 0.5) for i in range(1000))),
        pb.Tensor(dtype="fp16", shape=[1000], data=b"\0\x3c" * 1000),
        pb.Tensor(dtype="fp32", shape=[7], data=b"\0\0\x80\x3f" * 7),
    ],
)
def test_sparse_and_dense_distributions_are_accepted_without_sampling(tensor: pb.Tensor) -> None:
    frame = parse_frame(encode.encode_message("device-0", "cloud-0", request(), None))
    sends(tensor)(frame.envelope)
    message, packed = MessageDecoder(Limits(), KNOWN, with_tensors=True).message(frame.envelope)
    assert isinstance(message, Request)
    assert (message.slice.rule, message.slice.sampling) == ("greedy", None)
    assert packed == [(TensorRef("@device-0/probs/s/1", 4), tensor)]


def test_with_an_unknown_vocabulary_token_ids_are_bounded_by_int32() -> None:
    frame = parse_frame(encode.encode_message("device-0", "cloud-0", request(), None))
    sends(sparse((2**31 - 1, 1.0), width=6))(frame.envelope)
    MessageDecoder(Limits(), PeerExpectations(), with_tensors=True).message(frame.envelope)
    assert "tokens" in refused(sends(sparse((2**31, 1.0), width=6)), tensors=True, known=PeerExpectations())


def test_a_hop_without_embedding_needs_hidden_states() -> None:
    def change(envelope: pb.Envelope) -> None:
        envelope.request.hops[0].span.embedding = False

    assert "hidden states" in refused(change, known=PeerExpectations())


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
    frame = parse_frame(encode.encode_message("device-0", "cloud-0", other, None))
    assert MessageDecoder(Limits(), PeerExpectations(), with_tensors=False).message(frame.envelope) == (other, [])
