"""What is out of bounds is refused, and the text names the field."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_hosts import ROUTE, request

from serving.messages import Hop, Reply, Span, Verdict
from serving.transport import encode
from serving.transport import tandem_pb2 as pb
from serving.transport.checks import parsed
from serving.transport.decode import Decoder
from serving.transport.hello import Hello
from serving.transport.known import Known
from serving.transport.limits import Limits
from serving.transport.refused import RefusedError

KNOWN = Known(vocabulary=1000, hidden=4, route=ROUTE)


def refused(change: Callable[[Any], object], tensors: bool = False, known: Known = KNOWN) -> str:
    frame = parsed(encode.envelope("device-0", "cloud-0", request(), None))
    decoder = Decoder(Limits(max_tokens=100), known, tensors)
    decoder.message(frame.envelope)  # it is the change that is refused
    change(frame.envelope)
    with pytest.raises(RefusedError) as caught:
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
        ("request.rows.session", "", "rows.session"),
        ("request.rows.session", "x" * 65, "rows.session"),
        ("request.rows.session", "a b", "rows.session"),
        ("request.rows.session", "a\n", "rows.session"),
        ("request.rows.tokens", [1, 2, 1000], "rows.tokens"),
        ("request.rows.tokens", [1, 2, -1], "rows.tokens"),
        ("request.rows.tokens", [1, 2], "rows.tokens"),
        ("request.rows.n", 0, "rows.n"),
        ("request.rows.start", 98, "rows.n"),
        ("request.rows.start", 2**32 - 1, "rows.start"),
        ("request.rows.check", 3, "rows.check"),
        ("request.rows.rule", "maybe", "rows.rule"),
        ("request.rows.rule", "sample", "rows.sampling"),
        ("request.rows.rule", "", "rows.check"),
        ("request.rows.sampling.temperature", float("nan"), "temperature"),
        ("request.rows.sampling.temperature", float("inf"), "temperature"),
        ("request.rows.sampling.top_p", 0.5, "temperature and top_p must be above 0"),
        ("request.rows.parents.values", [0], "rows.parents"),
        ("request.rows.parents.values", [-1, 0], "rows.parents"),
        ("request.rows.keep.values", [1, 1], "rows.keep"),
        ("request.rows.keep.values", [-1], "rows.keep"),
        ("request.rows.blob.id", "a b", "rows.blob"),
        ("request.rows.blob.tensor.dtype", "fp32", "rows.blob"),
        ("request.rows.odds", [pb.Blob(id="a")] * 2, "rows.odds"),
        ("request.hop", 1, "request.hop"),
        ("request.path", [], "request.path"),
        ("request.path", ["cloud-0"] * 17, "request.path"),
        ("request.path", ["cloud-1"], "request.path"),
        ("request.route", [], "request.route"),
        ("request.route", [pb.Hop(node="cloud", out="last")] * 17, "request.route"),
        ("request.route", [pb.Hop(node="cloud", out="last")], "route of this run's policy"),
        ("request.route", [pb.Hop(node="cloud", out="some")], "route.out"),
        ("request.route", [pb.Hop(node="cloud", out="last", span=pb.Span(first=3, last=2))], "span.first"),
        ("request.reply_to", "", "reply_to"),
        ("request.budget", 0, "request.budget"),
        ("request.budget", 101, "request.budget"),
        ("request.deadline", float("nan"), "request.deadline"),
        ("request.value", float("inf"), "request.value"),
        ("request.value", -1.0, "request.value"),
        ("request.probes", ["heads"] * 17, "request.probes"),
        ("request.ends", [1] * 257, "request.ends"),
        ("request.ends", [5000], "request.ends"),
        ("request.round", 2**31, "request.round"),
        ("release.session", "", "release.session"),
        ("miss.round", 1, "miss.session"),
        ("backlog.node", "cloud-0", "backlog.node"),
    ],
)
def test_a_violation_is_named(path: str, value: object, field: str) -> None:
    assert field in refused(put(path, value))


def test_an_empty_envelope_is_refused() -> None:
    assert "there is none" in refused(lambda envelope: envelope.ClearField("request"))


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        (Verdict(101, 1), "accepted"),
        (Verdict(0, 1000), "verdict.token"),
        (Verdict(0, 1, (3, 3)), "verdict.keep"),
        (Verdict(0, 1, None, ((1, 2), (-1,))), "number of parents"),
        (Verdict(0, 1, None, ((1, 2), (-1, 1))), "proposal.parents"),
    ],
)
def test_bounds_of_a_verdict(verdict: Verdict, field: str) -> None:
    frame = parsed(encode.envelope("c", "d", Reply("s", 0, 0, verdict, (), 0), None))
    with pytest.raises(RefusedError, match=field):
        Decoder(Limits(max_tokens=100), KNOWN, tensors=False).message(frame.envelope)


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
        envelope.request.rows.blob.CopyFrom(pb.Blob(id="h", nbytes=24, tensor=tensor))

    assert field in refused(change, tensors=True)


def test_a_hop_that_does_not_embed_needs_hidden_states() -> None:
    def change(envelope: pb.Envelope) -> None:
        envelope.request.route[0].span.embed = False

    assert "hidden states" in refused(change, known=Known())


def test_hosts_of_different_runs_are_told_what_differs() -> None:
    here = Hello(("cloud-0",), digest="aa")
    for other in (Hello(("d",), digest="bb"), Hello(("d",), "aa", protocol=2), Hello(("d",), "aa", version="9")):
        with pytest.raises(RefusedError) as caught:
            here.meet(other.wire, Limits())
        assert caught.value.code == "FAILED_PRECONDITION"
        assert here.described in caught.value.text
        assert other.described in caught.value.text
    with pytest.raises(RefusedError, match="without tensors"):
        here.meet(Hello(("d",), "aa", tensors=True).wire, Limits())
    assert here.meet(Hello(("d",), "aa", boot="b").wire, Limits()) == Hello(("d",), "aa", boot="b")


def test_two_hosts_cannot_hold_one_node() -> None:
    with pytest.raises(RefusedError, match="both sides"):
        Hello(("a", "b")).meet(Hello(("b",)).wire, Limits())


def test_the_route_is_free_where_it_is_not_known() -> None:
    other = request()
    other = type(other)(0, other.rows, (Hop("x", Span(0, 2, True, True)),), 0, ("cloud-0",), "device-0")
    frame = parsed(encode.envelope("device-0", "cloud-0", other, None))
    assert Decoder(Limits(), Known(), tensors=False).message(frame.envelope) == (other, [])
