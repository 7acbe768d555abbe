"""Rows off the wire: the part of a request that an engine computes on, so that nothing in it may surprise one."""

from collections.abc import Sequence
from typing import cast, get_args

from serving.hardware.payload_size import NUMBERS, SCALE_NBYTES
from serving.messages import Blob, Hop, Rows, Rule, Sampling
from serving.transport import checks, tensors
from serving.transport import tandem_pb2 as pb
from serving.transport.errors import invalid
from serving.transport.known import Known
from serving.transport.limits import Limits

MAX_TEMPERATURE = 100.0
MAX_BLOB_NBYTES = 1 << 40


class RowsDecoder:
    """Every method raises RefusedError (INVALID_ARGUMENT) naming the field."""

    def __init__(self, limits: Limits, known: Known, carry: bool) -> None:
        self._limits, self._known, self._carry = limits, known, carry

    def rows(self, sender: str, wire: pb.Rows, hop: Hop, carried: list[tuple[Blob, pb.Tensor]]) -> Rows:
        """Adds the tensors that came along, packed, to `carried`; their blobs are renamed `@sender/...`, so that no
        host can name another's.
        """
        most = self._limits.max_tokens
        start = checks.within("rows.start", wire.start, 0, most)
        n = checks.within("rows.n", wire.n, 1, most - start)
        rule = cast(Rule, checks.one_of("rows.rule", wire.rule, get_args(Rule)))
        check = checks.within("rows.check", wire.check, 0, n - 1 if rule else 0)
        blob = self._hidden(sender, wire, n, hop, carried)
        odds = self._odds(sender, wire, check, carried)
        sampling = _sampling(wire.sampling) if wire.HasField("sampling") else None
        if rule == "sample" and sampling is None:
            raise invalid("rows.sampling: the rule 'sample' needs to know how tokens are drawn.")
        return Rows(
            checks.name("rows.session", wire.session), start, n, self._ids(wire.tokens, n, check, hop, blob), check,
            rule, sampling, self._parents(wire, check),
            self.keep("rows.keep", wire.keep) if wire.HasField("keep") else None, blob, odds,
        )  # fmt: skip

    def _ids(self, wire: Sequence[int], n: int, check: int, hop: Hop, blob: Blob | None) -> tuple[int, ...]:
        allowed = (n,) if hop.span.embed or blob is None else (0, check)
        if len(wire) not in allowed:
            raise invalid(f"rows.tokens: {len(wire)} for n={n} rows of which check={check} are drafts")
        return self.tokens("rows.tokens", wire)

    def _parents(self, wire: pb.Rows, check: int) -> tuple[int, ...] | None:
        if not wire.HasField("parents"):
            return None
        parents = self.parents("rows.parents", wire.parents.values)
        if check and len(parents) != check:
            raise invalid(f"rows.parents: {len(parents)} for check={check} drafts")
        return parents

    def parents(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        """Of a tree: a parent comes before its children, -1 is the last committed row."""
        checks.length(field, wire, 0, self._limits.max_tokens)
        parents = tuple(wire)
        for i, parent in enumerate(parents):
            checks.within(field, parent, -1, i - 1)
        return parents

    def keep(self, field: str, wire: pb.Indices) -> tuple[int, ...]:
        checks.length(field, wire.values, 0, self._limits.max_tokens)
        keep = checks.integers(field, wire.values, 0, self._limits.max_tokens)
        if len(set(keep)) < len(keep):
            raise invalid(f"{field}: a draft is named twice.")
        return keep

    def some_tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        checks.length(field, wire, 0, self._limits.max_tokens)
        return self.tokens(field, wire)

    def tokens(self, field: str, wire: Sequence[int]) -> tuple[int, ...]:
        most = checks.MAX_TOKEN if self._known.vocabulary is None else self._known.vocabulary - 1
        return checks.integers(field, wire, 0, most)

    # Tensors.

    def _hidden(
        self, sender: str, wire: pb.Rows, n: int, hop: Hop, carried: list[tuple[Blob, pb.Tensor]]
    ) -> Blob | None:
        if not wire.HasField("blob"):
            if not hop.span.embed:
                raise invalid("rows.blob: a hop that does not embed needs hidden states.")
            return None
        blob = self._blob("rows.blob", sender, wire.blob, carried)
        if self._carry:
            name, shape = tensors.check("rows.blob.tensor", wire.blob.tensor)
            checks.one_of("rows.blob: type", name, NUMBERS)
            least = n if hop.span.first < hop.span.last else 1
            checks.within("rows.blob: dimensions", len(shape), 2, 2)
            checks.within("rows.blob: rows", shape[0], least, n)
            if name == "int8":
                tensors.check_scaled("rows.blob", wire.blob.tensor)
            if self._known.hidden is not None:
                width = self._known.hidden + (SCALE_NBYTES if name == "int8" else 0)
                checks.within("rows.blob: width", shape[1], width, width)
        return blob

    def _odds(self, sender: str, wire: pb.Rows, check: int, carried: list[tuple[Blob, pb.Tensor]]) -> tuple[Blob, ...]:
        if len(wire.odds) not in (0, check):
            raise invalid(f"rows.odds: {len(wire.odds)} distributions for check={check} drafts")
        blobs = tuple(self._blob("rows.odds", sender, blob, carried) for blob in wire.odds)
        for blob in wire.odds if self._carry else ():
            self._distribution(blob.tensor)
        return blobs

    def _distribution(self, wire: pb.Tensor) -> None:
        """One that names tokens, or a probability for each of the vocabulary, whose values `Luggage` checks."""
        if wire.dtype == "int8":
            tensors.check_named("rows.odds", wire, self._known.vocabulary)
            return
        name, shape = tensors.check("rows.odds.tensor", wire)
        checks.one_of("rows.odds: type", name, ("fp16", "bf16", "fp32", "int8"))
        checks.within("rows.odds: dimensions", len(shape), 1, 1)
        if self._known.vocabulary is not None:
            checks.within("rows.odds: tokens", shape[0], 1, self._known.vocabulary)

    def _blob(self, field: str, sender: str, wire: pb.Blob, carried: list[tuple[Blob, pb.Tensor]]) -> Blob:
        name = checks.blob_id(field, f"@{sender}/{wire.id}")
        blob = Blob(name, checks.within(f"{field}.nbytes", wire.nbytes, 0, MAX_BLOB_NBYTES))
        if wire.HasField("tensor") != self._carry:
            raise invalid(f"{field}.tensor: it must {'' if self._carry else 'not '}travel, both hosts said so.")
        if self._carry:
            carried.append((blob, wire.tensor))
        return blob


def _sampling(wire: pb.Sampling) -> Sampling:
    temperature = checks.finite("rows.sampling.temperature", wire.temperature, 0, MAX_TEMPERATURE)
    top_p = checks.finite("rows.sampling.top_p", wire.top_p, 0, 1)
    if not (temperature and top_p):
        raise invalid("rows.sampling: temperature and top_p must be above 0; without sampling, decoding is greedy.")
    top_k = checks.within("rows.sampling.top_k", wire.top_k, 0, checks.MAX_TOKEN)
    return Sampling(temperature, top_k, top_p, wire.seed)
